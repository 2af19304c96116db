"""A multi-modal language model from a local folder: no network, and no code from the folder."""

from __future__ import annotations

import copy
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cc_prep import extras, storage, strict_json, weights
from cc_prep.errors import UserError, first_line
from cc_prep.storage import sha256, with_home
from cc_prep.weights import folders
from cc_train.systems.mllm import attention_tap, families
from cc_train.systems.mllm.families import Family
from cc_train.transformers_models import Precision, dtype_of

VARIABLE = "CC_TRAIN_MLLM_WEIGHTS"  # names the folder where it is elsewhere than a run says
GGUF, SOURCE = ".gguf", "source.sha256"
UNREADABLE = "Give a folder that transformers reads"


@dataclass(frozen=True, kw_only=True)
class Base:
    """A published model with its configuration and tokenizers.

    Attributes:
        config: Of transformers.
        tokenizer: Of the language model.
        questions: Tokenizer of a bridge that reads the prompt as well, else None.
        processor: Of `auto`, else None.
        mean, std: Of its pixels.
        fingerprint: SHA-256 by which a run recognises the model.
    """

    family: Family
    folder: Path
    config: Any
    model: nn.Module
    tokenizer: Any
    questions: Any
    processor: Any
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    fingerprint: str


def require() -> None:
    """Raises UserError without transformers or peft."""
    try:
        import peft  # noqa: F401
        import transformers
    except ImportError as error:
        raise UserError(
            f"cc-train mllm needs transformers and peft ({error})",
            extras.install("mllm"),
        ) from None
    # A model of a few files needs no bars of its own beside our console.
    transformers.utils.logging.disable_progress_bar()
    attention_tap.register()


def path_of(name_or_folder: str | None) -> Path:
    """The folder of a model.

    Args:
        name_or_folder: The name of weights, a GGUF file, or a folder with config.json. The
            environment variable CC_TRAIN_MLLM_WEIGHTS takes precedence.

    Raises:
        UserError: If there is none.
    """
    elsewhere = os.environ.get(VARIABLE)
    if name_or_folder is None and elsewhere is None:
        raise UserError(
            "no model is named", "Set model.weights to the folder of one, or to smollm2-135m"
        )
    chosen = elsewhere or str(name_or_folder)
    path = weights.fetch(chosen).path if weights.is_known(chosen) else Path(with_home(chosen))
    if path.suffix == GGUF and path.is_file():
        return _converted(path)
    if not (path / "config.json").is_file():
        raise UserError(
            f"{path}: no folder of a model (config.json is not there)",
            f"Set model.weights to a folder as save_pretrained writes it; for a run whose model "
            f"has moved, set {VARIABLE}",
        )
    return path


def family_of(config: Any, name: str | None, path: Path) -> Family:
    """The family of a model.

    Args:
        name: As the settings give it; None decides by the configuration.

    Raises:
        UserError: For one that the table does not have.
    """
    if name is not None:
        if name in families.FAMILIES:
            return families.FAMILIES[name]
        known = ", ".join(families.FAMILIES)
        raise UserError(
            f"no family is named {name}; the attention modules of {path}: {_modules(config)}",
            f"Known families: {known}",
        )
    family = families.of_type(config.model_type)
    if family is not None:
        return family
    if getattr(config, "vision_config", None) is None:
        return families.LM
    raise UserError(
        f"{path}: {config.model_type} belongs to no family of ours; its attention modules: "
        f"{_modules(config)}",
        "Set model.family=auto, which goes by the processor's chat template",
    )


def read_config(path: Path) -> Any:
    """The configuration of a folder. Raises UserError."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(path, **folders.LOCAL)
    except folders.UNREADABLE as error:
        raise UserError(f"{path}: {first_line(error)}", UNREADABLE) from None


def read(
    path: Path, family_name: str | None, precision: Precision = "float32", device: str = "cpu"
) -> Base:
    """The model of a folder, frozen and in evaluation. Raises UserError.

    Args:
        precision: See `dtype_of`.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    config = read_config(path)
    family = family_of(config, family_name, path)
    make = AutoModelForCausalLM if family is families.LM else AutoModelForImageTextToText
    kind = dtype_of(precision, device)
    tapped = attention_tap.IMPLEMENTATION
    try:
        model = folders.pretrained(make, path, dtype=kind, attn_implementation=tapped)
        tokenizer, questions, processor = _words(family, path)
    except folders.UNREADABLE as error:
        raise UserError(f"{path}: {first_line(error)}", UNREADABLE) from None
    if tokenizer.pad_token_id is None:  # Vicuna and GPT-2 have none
        tokenizer.pad_token = tokenizer.eos_token
    mean, std = _pixels(path, family)
    if family is families.AUTO:
        family = families.with_language(family, model)
    model = model.requires_grad_(False).eval()
    return Base(
        family=family,
        folder=path,
        config=model.config,
        model=model,
        tokenizer=tokenizer,
        questions=questions,
        processor=processor,
        mean=mean,
        std=std,
        fingerprint=fingerprint(path),
    )


def empty(config: Any) -> nn.Module:
    """The network of a configuration without any weights, for its names and sizes."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    sees_images = getattr(config, "vision_config", None) is not None
    make = AutoModelForImageTextToText if sees_images else AutoModelForCausalLM
    with torch.device("meta"):
        model: nn.Module = make.from_config(config)
    return model


def fingerprint(path: Path) -> str:
    """SHA-256 of the files that determine a model's output.

    For a folder that was converted from GGUF it is that of the GGUF file, since the content of the
    folder depends on the release of transformers.
    """
    if (path / SOURCE).is_file():
        return (path / SOURCE).read_text()
    return folders.digest(path)


def _converted(file: Path) -> Path:
    """The folder of a GGUF file's model in float32, written beside our other weights once.

    Reading a GGUF file takes a minute each time: its weights are unpacked, its words parsed.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = storage.cache_folder() / "weights" / f"{file.stem}-{sha256(file)[:12]}"
    if path.is_dir():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"gguf_file": file.name, **folders.LOCAL}
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        whole = Path(folder) / "model"
        try:
            AutoTokenizer.from_pretrained(file.parent, **options).save_pretrained(whole)
            model = AutoModelForCausalLM.from_pretrained(
                file.parent, dtype=torch.float32, **options
            )
            # What was read from GGUF says that it is quantised, and refuses to be written.
            config = copy.deepcopy(model.config)
            if hasattr(config, "quantization_config"):
                del config.quantization_config
            plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            plain.load_state_dict(model.state_dict())
            plain.save_pretrained(whole)
            (whole / SOURCE).write_text(sha256(file))
            os.replace(whole, path)
        except Exception as error:  # its parser raises nearly anything for a damaged file
            if not path.is_dir():  # another process may have been as fast
                raise UserError(
                    f"{file}: {first_line(error)}",
                    "Give a GGUF file of Llama's kind, and room for it",
                ) from None
    return path


def _words(family: Family, path: Path) -> tuple[Any, Any, Any]:
    """The tokenizer, that of the bridge, and the processor of `auto`."""
    from transformers import AutoProcessor, AutoTokenizer

    if family is families.AUTO:
        processor = AutoProcessor.from_pretrained(path, **folders.LOCAL)
        return processor.tokenizer, None, processor
    tokenizer = AutoTokenizer.from_pretrained(path, **folders.LOCAL)
    if family.chat and tokenizer.chat_template is None:
        tokenizer.chat_template = _chat_template(path)
    questions = None
    if family.question:
        questions = AutoTokenizer.from_pretrained(path / "qformer_tokenizer", **folders.LOCAL)
    return tokenizer, questions, None


def _chat_template(path: Path) -> str | None:
    """The chat template of a processor, for a tokenizer that has none of its own."""
    file = path / "chat_template.json"
    try:
        template = strict_json.loads(file.read_text(encoding="utf-8"))["chat_template"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(template)


def _pixels(
    path: Path, family: Family
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Mean and deviation of the pixels, as the folder's image processor has them."""
    values: dict[str, Any] = {}
    for name in ("processor_config.json", "preprocessor_config.json"):
        try:
            read = strict_json.loads((path / name).read_text(encoding="utf-8"))
            values |= read.get("image_processor", read)
        except (OSError, ValueError, TypeError, AttributeError):
            continue
    known = []
    for name, default in (("image_mean", family.mean), ("image_std", family.std)):
        value = values.get(name)
        right = isinstance(value, list) and len(value) == 3
        known.append(tuple(map(float, value)) if right and value is not None else default)
    return known[0], known[1]  # type: ignore[return-value]


def _modules(config: Any) -> str:
    try:
        return ", ".join(families.attention_modules(empty(config))) or "none"
    except (*folders.UNREADABLE, TypeError) as error:
        return f"not known ({first_line(error)})"
