"""`cc-train pack`: a trained network as one small file with a card that says how good it is.

Weights become float16, and of CLIP4IDC's word table only the rows that training ever saw are kept.
What is measured is the packed file, on shards that training never saw.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from cc_prep import storage
from cc_prep.records import NO_CHANGE
from cc_prep.steps import confidence
from cc_prep.steps.scoring import Scorer
from cc_prep.storage import sha256
from cc_prep.weights import networks
from cc_train.data.sequence_index import Sample, read_index
from cc_train.systems.clip4idc import objective as clip4idc
from cc_train.systems.clip4idc import recipe as pairs
from cc_train.systems.vqgan import objective as vqgan
from cc_train.systems.vqgan import recipe as frames
from cc_train.training import checkpoints

FEWEST_TRUE = 5

CARD = """\
# {{ name }}

{{ about }}

| | |
|---|---|
| file | `{{ name }}.safetensors`, {{ "%.1f" | format(bytes / 1e6) }} MB, float16 |
| SHA-256 | `{{ digest }}` |
| parameters | {{ "{:,}".format(parameters) }} |
| trained | {{ "{:,}".format(step) }} steps of {{ settings.loop.batch_size }}{{ data }} |
| licence | MIT, like the toolkit |

## How good it is

{{ measured_on }}

| measure | value |
|---|---|
{% for measure, value in measures.items() %}
| {{ measure }} | {{ value }} |
{% endfor %}

{{ remarks }}

## Settings

```json
{{ settings_text }}
```
"""


def pack(run: Path, held_out: Sequence[str], name: str, out: Path) -> Path:
    """Packs the best checkpoint of a run; the file. Raises UserError.

    held_out: sequence shards that training did not see. For CLIP4IDC those with true frames also
        show where the penalty is lowest.
    """
    step, samples = checkpoints.best_step(run), read_index(held_out)
    model = run / checkpoints.FOLDER / f"{step:06d}" / checkpoints.MODEL
    settings = json.loads((run / "settings.json").read_text())
    tensors = {n: t.half() if t.is_floating_point() else t for n, t in load_file(model).items()}
    if settings["kind"] == "clip4idc":
        tensors = without_unseen_words(tensors)
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{name}.safetensors"
    measure: Callable[[Path, list[Sample]], dict[str, Any]] = {
        "vqgan": _vqgan_card,
        "clip4idc": _clip4idc_card,
    }[settings["kind"]]
    words = {"settings": json.dumps(settings, sort_keys=True)}
    # Neither file gets its name before the other one is ready too.
    with tempfile.TemporaryDirectory(dir=out) as folder:
        packed = Path(folder) / file.name
        save_file({n: t.contiguous() for n, t in tensors.items()}, packed, metadata=words)
        packed.chmod(0o644)
        card = jinja2.Template(CARD, trim_blocks=True, lstrip_blocks=True).render(
            name=name,
            bytes=packed.stat().st_size,
            digest=sha256(packed),
            parameters=sum(t.numel() for t in tensors.values()),
            step=step,
            data=_said(settings),
            settings=settings,
            settings_text=json.dumps(settings, indent=1, sort_keys=True),
            **measure(packed, samples),
        )
        packed.replace(file)
    storage.write_bytes(str(file.with_suffix(".md")), f"{card.rstrip()}\n".encode())
    return file


def without_unseen_words(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with only those rows of the word table that are not zero, and their numbers."""
    table = tensors["token_embedding.weight"]
    rows = torch.nonzero(table.abs().sum(1)).flatten().to(torch.int32)
    return {
        **tensors,
        "token_embedding.weight": table[rows.long()].clone(),
        "token_embedding.rows": rows,
    }


def _said(settings: dict[str, Any]) -> str:
    samples = settings.get("samples")
    return f" on {samples['train']:,} of {samples['count']:,} pairs" if samples else ""


def _vqgan_card(file: Path, samples: list[Sample]) -> dict[str, Any]:
    network, _, _ = networks.vqgan(str(file))
    looked_at = frames.HeldOut(samples, 200, network.config.factor)
    with torch.inference_mode():
        found, _ = vqgan.measure(network, looked_at, "cpu")
    codes = network.config.codes
    return {
        "about": f"A VQGAN: {network.config.factor}× smaller along a side, {codes} codes. Small "
        "and briefly trained: right for trying the whole path and for tests, not for a paper.",
        "measured_on": f"On {min(200, sum(len(s.frames) for s in samples))} whole frames, ends and "
        f"interpolated ones, of {len(samples)} rendered pairs that training did not see.",
        "measures": {
            "PSNR": f"{found['psnr']:.2f} dB",
            "mean absolute error": f"{found['absolute']:.4f} of the range",
            "codes used": f"{round(found['used'] * codes)} of {codes}",
            "perplexity": f"{found['perplexity']:.1f}",
        },
        "remarks": "",
    }


def _clip4idc_card(file: Path, samples: list[Sample]) -> dict[str, Any]:
    network, _ = networks.clip4idc(str(file))
    changed = [s for s in samples if s.meta.get("kind") != NO_CHANGE and s.meta.get("captions")]
    looked_at = pairs.HeldOut(changed, len(changed), network.config.resolution)
    with torch.inference_mode():
        found = clip4idc.retrieval(network, looked_at, "cpu")
    measures = {
        f"{way} R@{k}": f"{found[f'{part}_r{k}']:.1f} % (chance {found[f'chance_r{k}']:.1f} %)"
        for way, part in (("pair by sentence,", "text"), ("sentence by pair,", "pair"))
        for k in clip4idc.RANKS
    }
    seen = [s for s in changed if _truth(s)]
    said = []
    for what, chosen in (
        ("changes", seen),
        ("moves alone", [s for s in seen if s.meta.get("change_type") == "move"]),
    ):
        if len(chosen) < FEWEST_TRUE:
            continue
        curve = true_penalties(network, chosen)
        lowest = int(curve[1:-1].argmin()) + 1
        measures[f"penalty of true frames, {len(chosen)} {what}"] = (
            f"lowest at frame {lowest} of 0 … {len(curve) - 1}"
        )
        said.append(f"{what}: {', '.join(f'{value:.2f}' for value in curve)}")
    remarks = (
        "The penalties of true frames, each divided by its sequence's mean, averaged, from before "
        f"to after; {'; '.join(said)}."
        if said
        else ""
    )
    return {
        "about": "A CLIP4IDC trained from scratch: it scores how well a pair of images fits a "
        "sentence about the change. It knows the words of rendered scenes, no others.",
        "measured_on": f"On {len(changed)} rendered pairs that training did not see.",
        "measures": measures,
        "remarks": remarks,
    }


def _truth(sample: Sample) -> list[str]:
    """A sequence's ends with the true frames between them."""
    truth = sorted(name for name in sample.members if name[0] == "t" and name[1:3].isdigit())
    return [sample.frames[0], *truth, sample.frames[-1]] if truth else []


def true_penalties(network: Any, samples: Sequence[Sample]) -> np.ndarray:
    """Mean penalty of true frames, [F], each sequence's scaled to a mean of 1."""
    scorer, curves = Scorer(network), []
    for sample in samples:
        images = np.stack([sample.image(name) for name in _truth(sample)])
        scores = scorer(images, tuple(str(c) for c in sample.meta["captions"]))
        penalty = confidence.penalties(*scores.similarities())
        curves.append(penalty / max(float(penalty.mean()), 1e-12))
    mean: np.ndarray = np.mean(curves, axis=0)
    return mean
