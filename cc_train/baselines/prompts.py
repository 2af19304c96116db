"""What a model is asked of a pair, by data set: `prompts.yaml`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from cc_prep import settings
from cc_prep.errors import UserError
from cc_prep.settings import Section

FILE = Path(__file__).parent / "prompts.yaml"


@dataclass(frozen=True)
class Wording:
    """The texts of a question, in the order before, image, after, image, prompt."""

    before: str
    after: str
    prompt: str

    def to_json(self) -> dict[str, str]:
        """The texts by name."""
        return asdict(self)


class Default(Section):
    """The wording of data sets that the file does not name."""

    before: str
    after: str
    prompt: str


class OfDataset(Section):
    """The wording of a data set; what is None is the default's."""

    before: str | None = None
    after: str | None = None
    prompt: str | None = None


class Prompts(Section):
    """The whole file."""

    default: Default
    rendered: OfDataset
    datasets: dict[str, OfDataset]


@cache
def read() -> Prompts:
    """All wordings. Raises UserError."""
    values = settings.parse(FILE.read_text(encoding="utf-8"), FILE.name)
    return settings.build(Prompts, values, FILE.name, "cc_train/baselines/prompts.yaml")


def of(dataset: str | None, prompt: str | None = None, *, rendered: bool = False) -> Wording:
    """The wording for a data set, by its manifest's name.

    Args:
        prompt: The user's, in place of the file's.
        rendered: Whether all pairs of the data set have the facts of `cc-prep synth`, so that a
            name that the file lacks means rendered scenes.

    Raises:
        UserError: For an empty prompt.
    """
    known = read()
    wording = Wording(**known.default.model_dump())
    own = known.datasets.get(dataset or "", known.rendered if rendered else OfDataset())
    wording = replace(wording, **own.model_dump(exclude_none=True))
    if prompt is None:
        return wording
    if not prompt.strip():
        raise UserError("--prompt is empty", "Leave it out: there is a prompt for every data set")
    return replace(wording, prompt=prompt.strip())
