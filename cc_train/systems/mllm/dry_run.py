"""`cc-train mllm --dry-run`: the cost of a training, from the configuration of its model."""

from __future__ import annotations

from cc_prep.errors import UserError
from cc_train.layers.pair_comparison import PLACES, SUMMARIES
from cc_train.systems.mllm import adapters, families, images, loading
from cc_train.systems.mllm.estimate import estimate
from cc_train.systems.mllm.recipe import Settings

# Of a question with its chat template and an entity: what it is exactly only the tokenizer knows.
QUESTION = 48
CONNECTOR = "The connector comes on top: its size follows from the features in the shards.\n"


def dry_run(settings: Settings) -> str:
    """Parameters, the share that is trained, and bytes, as a table. Raises UserError.

    Neither the model's weights nor any shards are read.
    """
    loading.require()
    model = settings.model
    path = loading.path_of(model.weights)
    config = loading.read_config(path)
    family = loading.family_of(config, model.family, path)
    images.require_pictures(family, model.image_size, model.images)
    if family is families.LM:
        summaries = SUMMARIES + (PLACES if settings.connector.places else 0)
        side, places, pictures = None, summaries + settings.connector.grid**2, 1
    elif family.pixels == "processor":
        raise UserError(
            "model.family=auto: the tokens of an image are known to the model's processor alone",
            "Name a family of the table, or leave --dry-run out",
        )
    else:
        shape = images.geometry(family, config, model.image_size, model.images)
        side, places, pictures = shape.size, shape.images * shape.places, shape.images
    expressions, ranks = adapters.expressions(family, settings.lora), settings.lora.ranks()
    answer = settings.generation.max_new_tokens
    sizes = estimate(
        config,
        {part: (expression, ranks[part]) for part, expression in expressions.items()},
        batch_size=settings.loop.batch_size,
        precision="bfloat16" if model.precision == "auto" else model.precision,
        checkpointing=model.checkpointing != "none",
        sequence_length=places + QUESTION + answer,
        image_size=side,
        caption_length=answer,
        pictures=pictures,
    )
    return sizes.table() + (CONNECTOR if family is families.LM else "")
