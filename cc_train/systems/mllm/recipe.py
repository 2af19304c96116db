"""`cc-train mllm`: a multi-modal language model and training shards → a captioner."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from cc_prep.errors import UserError
from cc_prep.formats.tar import DamagedShard
from cc_prep.formats.training_shards import TrainingSample
from cc_prep.settings import Place, Section
from cc_prep.unspaced import Words
from cc_train.captioner import Inputs
from cc_train.data import feature_statistics, found_entities, order, shard_index, split
from cc_train.data.shard_index import Entry
from cc_train.data.stream import StreamSettings
from cc_train.layers import frozen_backbone
from cc_train.layers.frozen_backbone import BackboneSpec, FrozenBackbone
from cc_train.runs import run_folder, stored_run, transfer
from cc_train.runs.stored_run import Run
from cc_train.systems.mllm import adapters, batches, families, images, loading
from cc_train.systems.mllm.adapters import Lora
from cc_train.systems.mllm.batches import AttentionControl, Entities, MllmBatches
from cc_train.systems.mllm.captioner import Generation, MllmCaptioner
from cc_train.systems.mllm.grid_features import Connector, GridConnector, SeeingLanguageModel
from cc_train.systems.mllm.images import Geometry, ImageLayout
from cc_train.systems.mllm.loading import Base
from cc_train.systems.mllm.objective import MllmObjective
from cc_train.systems.mllm.prompts import PASTED, SIDES, Prompt, PromptTokenizer, Sizes
from cc_train.training.settings import Loop
from cc_train.training.task import Task, TrainingRequest, over_samples, validation
from cc_train.transformers_models import Precision, dtype_of, image_token

IMAGE = "<image>"  # the mark of an image's place where a model has none of its own
ENCODER = "encoder."  # before the names of a pair captioner's tensors that a connector has too
OF_WORDS = ("bridge.", "kinds")  # of a connector, what a captioner has in other sizes
LOOKED_AT = 200  # samples, for what was found in them
NO_LIMIT = 2**31  # of a context that the configuration does not bound


class Model(Section):
    """The model to adapt."""

    weights: Place[str | None] = None
    """The folder of a model, as save_pretrained writes it, or a name that `cc-prep weights` lists.
    """
    family: str | None = None
    """One of the families of docs/mllm.md; null: that of its configuration."""
    precision: Precision = "auto"
    """Of the frozen weights; auto: bfloat16 on a GPU, float32 on a CPU. Adapters are always
    float32."""
    image_size: int | None = Field(None, ge=14)
    """In px, for models that take any; null: the model's. Not for `lm`, which reads the features in
    the shards."""
    images: ImageLayout = "two"
    """`pasted`: both in one picture, side by side."""
    checkpointing: Literal["none", "non_reentrant", "reentrant"] = "none"
    """Other than `none`: layers are computed twice, to save memory."""
    backbone_weights: Place[str | None] = None
    """Of `lm`: a file, or transformers' folder, for a backbone whose weights have no name here."""


class Settings(Section):
    """All settings of `cc-train mllm`.

    The defaults are DAVIR's, or where its paper is silent, FINER-MLLM's (docs/mllm.md).
    """

    model: Model = Model()
    """The model to adapt."""
    lora: Lora = Lora()
    """The adapters."""
    connector: Connector = Connector()
    """The connector of `lm`."""
    prompt: Prompt = Prompt()
    """The question to the model."""
    attention: AttentionControl = AttentionControl()
    """The loss that draws attention to the changed area."""
    entity: Entities = Entities()
    """The names of things in the prompt."""
    generation: Generation = Generation()
    """How captions are generated; beams are given to `evaluate` and `caption`."""
    words: Words = "treebank"
    """How captions are split into words for scores; the training has the tokens of its model."""
    validation_split: split.ValidationSplit = split.ValidationSplit()
    """What is held out of the training for validation, without --valid."""
    stream: StreamSettings = StreamSettings()
    """How shards are read."""
    loop: Loop = Loop(
        steps=12000,
        epochs=20,
        batch_size=16,
        learning_rate=1e-5,
        weight_decay=0.1,
        warmup_steps=100,
    )
    """The training loop."""


def prepare(settings: Settings, request: TrainingRequest) -> Task:
    """The training task: data, captioner, objective. Raises UserError."""
    loading.require()
    _refuse(settings)
    path = loading.path_of(settings.model.weights)
    family = loading.family_of(loading.read_config(path), settings.model.family, path)
    images.require_pictures(family, settings.model.image_size, settings.model.images)
    if request.init is not None and family is not families.LM:
        raise UserError(
            "--init: only the connector of a language model of text starts from another run",
            "Leave --init out",
        )
    data = split.read(request.shards, request.valid, settings.validation_split, request.console)
    data = split.with_captions(data, request.console)
    about: dict[str, Any] = {"samples": data.about()}
    spec = None
    if family is families.LM:
        spec = BackboneSpec.of(feature_statistics.first_features(data.train))
        about |= {"backbone": spec.to_json(), "size": data.size}
    _require_findings(settings, data.train)
    base = loading.read(path, settings.model.family, settings.model.precision, request.device)
    about["base"] = {"family": base.family.name, "fingerprint": base.fingerprint}
    backbone = None
    if spec is not None:
        backbone = frozen_backbone.find(spec, settings.model.backbone_weights)
    captioner = make(settings, base, about, backbone)
    if isinstance(captioner.model, SeeingLanguageModel):
        assert backbone is not None
        _init_connector(captioner.model.connector, settings, data.train, backbone.spec, request)
    _say_sizes(captioner, request)
    objective = MllmObjective(
        captioner,
        validation(data, settings, request, captioner.inputs, words=settings.words),
        settings.attention,
        settings.loop.weight_decay,
        settings.connector.rate,
        request.device,
    )
    make_batch = MllmBatches(
        captioner.prompt_tokenizer,
        captioner.inputs.size,
        settings.attention,
        settings.entity,
        grid=control_grid(captioner, settings.attention),
        images=captioner.shape.images,
        backbone=captioner.inputs.backbone,
        pasted=captioner.shape.pasted,
    )
    files = {} if backbone is None else backbone.files()
    return over_samples(
        data, make_batch, objective, settings, request=request, about=about, files=files
    )


def control_grid(captioner: MllmCaptioner, control: AttentionControl) -> tuple[int, int] | None:
    """Rows and columns of the grid on which attention is controlled; None without control."""
    if not control.is_on:
        return None
    return captioner.shape.patches if control.where == "vision" else captioner.shape.tokens


def make(
    settings: Settings, base: Base, about: Mapping[str, Any], backbone: FrozenBackbone | None
) -> MllmCaptioner:
    """A captioner with untrained adapters. Raises UserError."""
    model, shape = base.model, None
    if base.family is families.LM:
        assert backbone is not None
        base.tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE]})
        image = int(base.tokenizer.convert_tokens_to_ids(IMAGE))
        model, shape = _with_connector(settings, base, backbone, image)
    elif base.processor is not None:
        size, layout = settings.model.image_size, settings.model.images
        shape, image = images.of_processor(base.processor, base.config, size, layout)
    else:
        size, layout = settings.model.image_size, settings.model.images
        shape = images.geometry(base.family, base.config, size, layout)
        image = image_token(base.config, base.folder)
    adapters.inject(model, base.family, settings.lora)
    if isinstance(model, SeeingLanguageModel):
        model.connector.requires_grad_(True)
    if settings.model.checkpointing == "non_reentrant":
        base.model.gradient_checkpointing_enable(  # type: ignore[operator]
            gradient_checkpointing_kwargs={"use_reentrant": False}
        )
    text = base.config.get_text_config()
    words_before = PASTED if shape.pasted else SIDES
    sizes = Sizes(
        sides=("",) if base.family is families.LM else words_before,
        places=shape.places,
        length=settings.generation.max_new_tokens,
        context=int(getattr(text, "max_position_embeddings", None) or NO_LIMIT),
        size=shape.size,
    )
    prompt_tokenizer = PromptTokenizer(base, settings.prompt, sizes, image)
    prompt_tokenizer.question()  # a prompt that cannot be asked is known before any training
    height, width = about.get("size") or shape.image_size
    inputs = Inputs((height, width))
    if backbone is not None:
        inputs = replace(inputs, reads="features", backbone=backbone.spec.source)
    if settings.entity.source == "retrieved":
        inputs = replace(inputs, entities=settings.entity.k)
    layer = settings.attention.layer if settings.attention.where == "llm" else -1
    return MllmCaptioner(
        base,
        model,
        shape,
        prompt_tokenizer=prompt_tokenizer,
        generation=settings.generation,
        inputs=inputs,
        backbone=backbone,
        layer=layer,
    )


def load(run: Run, device: str) -> MllmCaptioner:
    """The captioner of a run. Raises UserError."""
    loading.require()
    captioner = stored_run.network_of(run, partial(_untrained, device=device), device)
    if dtype_of(run.settings["model"]["precision"], device) == torch.float32:
        adapters.merge(captioner.model)  # in fewer bits the sum would be another one
    return captioner


def _untrained(run: Run, device: str) -> MllmCaptioner:
    settings, known = stored_run.settings_of(run, Settings), run.settings["base"]
    path = loading.path_of(settings.model.weights)
    base = loading.read(path, settings.model.family, settings.model.precision, device)
    if base.fingerprint != known["fingerprint"]:
        raise UserError(
            f"{path}: another model than {run.folder} was trained with",
            f"Restore it, or set {loading.VARIABLE} to the folder of the right one",
        )
    backbone = None
    if "backbone" in run.settings:
        spec = BackboneSpec.of_json(run.settings["backbone"])
        backbone = frozen_backbone.read(run.folder, spec)
    return make(settings, base, run.settings, backbone)


def _require_findings(settings: Settings, entries: Sequence[Entry]) -> None:
    """Raises UserError if the shards lack the masks or entities that the settings require.

    Without this check the plain model would be trained, and nobody would notice. A damaged mask
    raises UserError as well."""
    control, entity = settings.attention, settings.entity
    samples = list(_readable(order.sample(entries, [entry.key for entry in entries], LOOKED_AT)))
    try:
        without_masks = control.is_on and all(batches.mask_of(s, control) is None for s in samples)
        without_entities = entity.source == "retrieved" and not any(
            found_entities.entities(sample, entity.k) for sample in samples
        )
    except DamagedShard as error:  # the training could not continue with it either
        raise UserError(str(error), shard_index.ADVICE) from None
    if without_masks:
        of_truth = control.masks == "truth"
        raise UserError(
            f"these shards hold no masks of {'true' if of_truth else 'found'} changes",
            "Set attention.where=none, or "
            + ("give rendered pairs" if of_truth else "run cc-prep changes before cc-prep build"),
        )
    if without_entities:
        raise UserError(
            "these shards hold no entities",
            "Set entity.source=none, or run cc-prep entities before cc-prep build",
        )


def _readable(entries: Sequence[Entry]) -> Iterator[TrainingSample]:
    """The samples that can be read: training decides how many may be damaged."""
    for entry in entries:
        with contextlib.suppress(DamagedShard, FileNotFoundError):
            yield entry.read()


def _refuse(settings: Settings) -> None:
    """Raises UserError for settings that do not go together."""
    if settings.model.checkpointing == "reentrant":
        raise UserError(
            "model.checkpointing=reentrant: attention read in such a layer has no gradient",
            "Set model.checkpointing=non_reentrant",
        )
    if settings.loop.ema_decay:
        raise UserError(
            "loop.ema_decay: a running average would hold the whole model twice",
            "Set loop.ema_decay=0",
        )
    fewest, most = settings.generation.min_new_tokens, settings.generation.max_new_tokens
    if fewest > most:
        raise UserError(
            f"generation.min_new_tokens={fewest} is more than generation.max_new_tokens={most}",
            "Change one of them",
        )


def _with_connector(
    settings: Settings, base: Base, backbone: FrozenBackbone, image: int
) -> tuple[nn.Module, Geometry]:
    """A text-only language model with an untrained connector, and its geometry."""
    _, rows, columns = backbone.spec.grid
    table = base.model.get_input_embeddings().weight  # type: ignore[operator]
    connector = GridConnector(
        settings.connector,
        backbone.spec.grid,
        table.shape[1],
        float(table.float().square().mean().sqrt()),
    )
    cells = settings.connector.grid
    # One image for the prompt: what differs between the two.
    shape = Geometry(
        size=0,
        places=connector.tokens,
        patches=(rows, columns),
        tokens=(cells, cells),
        slots=torch.arange(rows * columns),
        images=1,
    )
    return SeeingLanguageModel(base.model, connector, image), shape


def _init_connector(
    connector: GridConnector,
    settings: Settings,
    entries: Sequence[Entry],
    spec: BackboneSpec,
    request: TrainingRequest,
) -> None:
    """Initialises the connector: from the encoder of the pair captioner that --init names, which
    compares features in the same way, or else with the feature statistics of `entries`.

    Raises:
        UserError: For a run with other features or another width.
    """
    if request.init is None:
        statistics = feature_statistics.compute(entries, spec.source, request.console)
        connector.mean.copy_(statistics.mean)
        connector.std.copy_(statistics.std)
        return
    run = stored_run.read(run_folder.locate(request.init), "pair")
    trained = BackboneSpec.of_json(run.settings["backbone"])
    frozen_backbone.require_same(request.init, trained, spec)
    transfer.require_same(run, "encoder.heads", settings.connector.heads, "connector.heads")
    own = connector.state_dict()
    encoder = {
        name.removeprefix(ENCODER): tensor
        for name, tensor in run.tensors.items()
        if name.startswith(ENCODER)
    }
    shared = {name: tensor for name, tensor in encoder.items() if name in own}
    missing = [name for name in own if name not in shared and not name.startswith(OF_WORDS)]
    other = [name for name, tensor in shared.items() if tensor.shape != own[name].shape]
    if missing or other:
        raise UserError(
            f"{request.init} has an encoder of other sizes ({(missing + other)[0]})",
            f"Set connector.width={run.settings['encoder']['width']}",
        )
    connector.load_state_dict(shared, strict=False)


def _say_sizes(captioner: MllmCaptioner, request: TrainingRequest) -> None:
    whole = sum(p.numel() for p in captioner.parameters())
    trained = sum(p.numel() for p in captioner.parameters() if p.requires_grad)
    request.console.print(
        f"{captioner.base.family.name}: {whole / 1e6:,.1f} M parameters, {trained / 1e6:,.2f} M of "
        f"them trained; {captioner.shape.images * captioner.shape.places} tokens for the images"
    )
