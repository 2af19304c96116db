"""Networks as ONNX: they compute what torch computes, and a page in the browser captions."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from cc_prep.errors import JobFailed, UserError
from cc_prep.media import images
from cc_train import Captioner, doubt, systems
from cc_train.sharing import onnx_export
from tests import browser
from tests.commands import cc_train
from tests.conftest import ROOT

RUNTIME = ROOT / ".venv/onnxruntime-web/node_modules"
EXAMPLES = Path(str(resources.files("cc_train.serve") / "examples"))
CLOSE = 1e-4


@pytest.fixture(scope="module")
def captioner() -> Captioner:
    return Captioner.from_pretrained("captioner-mini", device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("onnx") / "web"
    written = onnx_export.export("captioner-mini", out)
    names = ["captioner.json", "decoder.onnx", "encoder.onnx", "index.html", "page.css", "page.js"]
    assert [file.name for file in written] == names
    return out


def session(file: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])


def test_the_graphs_caption_as_torch_does(folder: Path, captioner: Captioner) -> None:
    """Keeps away: a graph that is right for the batch and the words it was made with alone."""
    encoder, decoder = (session(folder / f"{name}.onnx") for name in ("encoder", "decoder"))
    about = json.loads((folder / onnx_export.ABOUT).read_text())
    pairs = onnx_export.example_pairs(captioner.inputs.size)[:5]
    memory, strange = encoder.run(None, {"images": pairs.numpy()})
    prepared = captioner.model.prepare(pairs)
    own = captioner.model.memory(prepared)
    expected = captioner.model.caption(pairs)
    assert np.allclose(strange, captioner.model.ood_score(prepared), atol=CLOSE)
    for number, one in enumerate(expected):
        ids, score = [about["begin"]], 0.0
        while len(ids) < about["length"]:
            given = {"ids": np.array([ids]), "memory": memory[number : number + 1]}
            [chances] = decoder.run(None, given)
            with torch.inference_mode():
                logits = captioner.model.logits(torch.tensor([ids]), own[number : number + 1])
                logits[:, :, list(captioner.model.codec.marks.never)] = float("-inf")
                assert np.allclose(chances, logits[:, -1].softmax(-1), atol=CLOSE)
            score += float(np.log(chances.max()))
            if (word := int(chances.argmax())) == about["end"]:
                break
            ids.append(word)
        assert " ".join(about["words"][word] for word in ids[1:]) == one.text
        assert score == pytest.approx(one.score, abs=CLOSE)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The folder at an address of this machine."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}/index.html"
        http.shutdown()
        thread.join()


@pytest.mark.skipif(not RUNTIME.exists(), reason="`make test` fetches onnxruntime-web")
def test_the_page_captions_in_the_browser(
    folder: Path, captioner: Captioner, tmp_path: Path
) -> None:
    """Keeps away: a page that resizes otherwise, asks another machine, or says another sentence."""
    noise = np.random.default_rng(0).integers(0, 256, (90, 150, 3)).astype(np.uint8)
    for name, pixels in (("noise", noise), ("other", np.ascontiguousarray(noise[::-1]))):
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    pairs = [(EXAMPLES / f"scene{n}_before.jpg", EXAMPLES / f"scene{n}_after.jpg") for n in (1, 2)]
    pairs.append((pairs[0][0], pairs[0][0]))  # equal
    pairs.append((tmp_path / "noise.png", tmp_path / "other.png"))  # not sure
    with served(folder) as address, browser.tab(tmp_path) as tab:
        tab.open(address)
        tab.wait_for("caption.textContent.startsWith('onnxruntime-web is not here')")
        (folder / "node_modules").symlink_to(RUNTIME)
        tab.complaints.clear()
        tab.open(address)
        tab.wait_for("document.body.dataset.ready")
        for size in ((112, 112), (60, 100)):
            pixels = noise.flatten().tolist()
            resized = tab.run(
                "import('./page.js').then((page) => Array.from("
                f"page.resized(Uint8Array.from({pixels}), 150, 90, {list(size)})))"
            )
            assert resized == images.resize(noise, size).flatten().tolist()
        for before, after in pairs:
            expected = captioner(before, after)
            tab.choose("#before", before)
            tab.choose("#after", after)
            tab.wait_for(f"caption.textContent === {json.dumps(expected.text)}")
            assert expected.confidence is not None
            sure = f"{min(99, round(100 * expected.confidence))} % sure"
            assert tab.run("confidence.textContent") == sure
        assert expected.text.startswith(doubt.NOT_SURE)
        tab.choose("#after", pairs[0][1])
        tab.wait_for("caption.textContent.startsWith('The two images differ in size')")
        assert all(one.startswith(address.rpartition("/")[0]) for one in tab.requests)
        assert tab.complaints == []


def test_the_networks_of_photos_mini(tmp_path: Path) -> None:
    """Keeps away: maps of another grid than the captioner reads, boxes of a fixed batch."""
    photos = Captioner.from_pretrained("photos-mini", device="cpu").model
    pairs = onnx_export.example_pairs(photos.inputs.size)[:3]
    made = systems.recipe("photos").graphs(photos, pairs)
    comparison = made.graphs["comparison"]
    with torch.inference_mode():
        chances, before, _ = comparison.network(comparison.inputs["pairs"])
        verdicts = photos._verdicts([tuple(pair) for pair in pairs.numpy()])
    for number, verdict in enumerate(verdicts):
        assert made.about["types"][int(chances[number].argmax())] == verdict.type
        assert np.allclose(before[number], verdict.before, atol=CLOSE)
    detector, file = made.graphs["detector"], tmp_path / "detector.onnx"
    network = detector.network
    onnx_export.write(detector, file)
    onnx_export.check(detector, file)
    doubled = replace(detector, network=lambda images: tuple(2 * x for x in network(images)))
    with pytest.raises(JobFailed, match=r"detector.onnx: scores of onnxruntime is off by"):
        onnx_export.check(doubled, file)


def test_what_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a run of chain has no ONNX form"):
        onnx_export.export("chain-mini", tmp_path / "new")
    with pytest.raises(UserError, match="already exists"):
        onnx_export.export("captioner-mini", tmp_path)
    done = cc_train("export", "captioner-mini", tmp_path / "new", "--onnx", "--data", "x")
    assert (done.returncode, "Leave the other options out" in done.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []
