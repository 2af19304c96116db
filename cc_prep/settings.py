"""Settings as YAML gives them: strict sections, `key=value` overrides, mistakes in words."""

from __future__ import annotations

import ast
import difflib
import inspect
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import pairwise
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo

from cc_prep.errors import UserError


class Section(BaseModel):
    """A part of the settings: unknown keys are errors, values never change after reading.

    The text below a field is its meaning, which `commented` shows. Keys that a section within this
    one leaves out have the values of this section's default for it, which need not be those of its
    class.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        defaults = {name: field.default for name, field in cls.model_fields.items()}
        return {key: _over(defaults.get(key), value) for key, value in values.items()}


class Conflict(ValueError):
    """Values of a section that do not go together, for its validators to raise.

    Args:
        what: The keys and their values, in words.
        remedy: What to change.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.remedy = remedy


def _over(default: Any, value: Any) -> Any:
    """`value`, or if both are sections, its keys put over those of the default."""
    if not isinstance(default, Section) or not isinstance(value, dict):
        return value
    names = type(default).model_fields
    values = {key: _over(getattr(default, key, None), item) for key, item in value.items()}
    return {**{name: getattr(default, name) for name in names}, **values}


S = TypeVar("S", bound=Section)
T = TypeVar("T")


class Role(Enum):
    """What a setting says, if it does not decide the result."""

    SPEED = "speed"  # time, memory, device, reports: the result is the same up to rounding
    PLACE = "place"  # where a file of the user lies


# The types of fields with a role, as in `threads: Speed[int] = 2`; `keys` finds them.
Speed = Annotated[T, Role.SPEED]
Place = Annotated[T, Role.PLACE]
MAX_CHARACTERS = 1_000_000  # of a YAML file
MAX_VALUES = 100_000
MAX_DEPTH = 8  # of sections
SOURCE = "source"  # a field that no user sets
LINE = 100  # characters of a commented line
BOUNDS = {
    "gt": ">",
    "ge": "≥",
    "lt": "<",
    "le": "≤",
    "multiple_of": "multiple of",
    "min_length": "at least so many:",
}
KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}
VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}")
# Of reading a text; ValueError is one such as 2026-99-99, which looks like a date.
YAML_ERRORS = (yaml.YAMLError, RecursionError, ValueError)


class _Loader(yaml.SafeLoader):
    """YAML that reads numbers as everybody else does: PyYAML takes 1e-3 for a string, 0112 for 74
    and 1:30 for 90, as YAML 1.1 says.

    A key that occurs twice is an error; PyYAML would take the last one.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """The node that PyYAML composes.

        The check is here because the constructor adds merged keys (`<<: *name`) to the others.

        Raises:
            ComposerError: For a key that occurs twice.
        """
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    problem = f"{key.value} occurs twice"
                    raise yaml.composer.ComposerError(None, None, problem, key.start_mark)
                seen.add((key.tag, key.value))
        return node


INTEGER = "tag:yaml.org,2002:int"
_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != INTEGER]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    INTEGER, re.compile(r"[-+]?(0x[\da-fA-F]+|0o[0-7]+|\d+(_\d+)*)$"), list("-+0123456789")
)
_Loader.add_constructor(
    INTEGER,
    lambda loader, node: int(node.value, 0 if re.match("[-+]?0[xo]", node.value) else 10),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def parse(text: str, source: str) -> dict[str, Any]:
    """The keys of a YAML text, `${NAME}` and `${NAME:-default}` expanded. Raises UserError."""
    return expand(read(text, source), source)


def read(text: str, source: str) -> dict[str, Any]:
    """The keys of a YAML text as they are written. Raises UserError."""
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"{source}: {len(text):,} characters", "That is no file of settings")
    try:
        values = yaml.load(text, _Loader)
    except YAML_ERRORS as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise UserError(f"{source}{line}: {_reason(error)}", "Fix the file") from None
    if not isinstance(values, dict):
        raise UserError(f"{source}: holds no keys", "See manifests/README.md for them")
    return values


def expand(values: dict[str, Any], source: str) -> dict[str, Any]:
    """The values with `${NAME}` and `${NAME:-default}` in texts replaced. Raises UserError."""
    try:
        expanded: dict[str, Any] = _expand(values, source, iter(range(MAX_VALUES)))
    except RecursionError:
        raise UserError(f"{source}: nested too deeply", "Fix the file") from None
    return expanded


def override(values: dict[str, Any], overrides: Sequence[str]) -> None:
    """Sets each `dotted.key=value` in `values`, the value read as YAML. Raises UserError."""
    for assignment in overrides:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise UserError(
                f"--set {assignment}: not key=value", "Use, for example, --set interpolate.depth=2"
            )
        if not text.strip():  # as of a shell's variable that is not set
            raise UserError(
                f"--set {assignment}: no value after =", f"Give one; for none, --set {key}=null"
            )
        *parents, last = key.split(".")
        inner = values
        for parent in parents:
            if inner.get(parent) is None:  # a section that a file leaves out may be null in it
                inner[parent] = {}
            inner = inner[parent]
            if not isinstance(inner, dict):
                raise UserError(
                    f"--set {assignment}: {parent} has no keys below it", "Drop the dot"
                )
        try:
            inner[last] = yaml.load(text, _Loader)
        except YAML_ERRORS as error:
            what = f"the value is not YAML ({_reason(error)})"
            raise UserError(f"--set {assignment}: {what}", "Quote it") from None


def _reason(error: Exception) -> str:
    """Why a text is not read, of one of YAML_ERRORS."""
    if isinstance(error, yaml.YAMLError):
        return getattr(error, "problem", None) or "not YAML"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def build(
    model: type[S],
    values: dict[str, Any],
    source: str,
    help: str,
    overrides: Sequence[str] = (),
) -> S:
    """The section that values describe.

    Args:
        values: By key, nested; the overrides are in them.
        source: What the values are of, for messages.
        help: The page that explains the keys.
        overrides: The `dotted.key=value` of `--set`, to which a message refers where it is of one
            of them.

    Raises:
        UserError: A key is unknown or missing, or a value is wrong; it names source, key, remedy.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _explained(model, source, error, help, overrides) from None


def _expand(value: Any, source: str, left: Iterator[int]) -> Any:
    """`value` with variables put in; `left` runs out where aliases multiply without end."""
    if next(left, None) is None:
        raise UserError(f"{source}: more than {MAX_VALUES:,} values", "Use fewer aliases (*name)")
    if isinstance(value, dict):
        return {key: _expand(item, source, left) for key, item in value.items()}
    if isinstance(value, list):
        return [_expand(item, source, left) for item in value]
    if not isinstance(value, str):
        return value

    def variable(match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        value = os.environ.get(name) or default
        if value is None:
            raise UserError(f"{source}: ${{{name}}} is not set", f"Set {name} in the environment")
        return value

    return VARIABLE.sub(variable, value)


def begins_with_environment(text: object) -> bool:
    """Whether a value that is not expanded yet begins with what the environment says."""
    match = VARIABLE.match(text) if isinstance(text, str) else None
    return match is not None and bool(os.environ.get(match["name"]))


def _explained(
    model: type[Section],
    source: str,
    error: ValidationError,
    help: str,
    overrides: Sequence[str],
) -> UserError:
    """The first mistake of a ValidationError in words."""
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    where = f"{source}: {key or '(the whole file)'}"
    for assignment in overrides:
        name = assignment.partition("=")[0]
        if f"{name}.".startswith(f"{key}.") or f"{key}.".startswith(f"{name}."):
            if first["type"] == "extra_forbidden":
                key = max(key, name, key=len)
            where = f"--set {key}"
    if first["type"] == "extra_forbidden":
        near = nearest(model, key)
        if near is not None:
            return UserError(f"{where}: unknown key", f'Did you mean "{near}"?')
        known = keys(_section_of(model, key.split(".")[:-1]), depth=1)
        return UserError(f"{where}: unknown key", f"Known here: {', '.join(known)}")
    if first["type"] == "missing":
        return UserError(f"{where}: missing", f"Add it; see {help}")
    rule = first.get("ctx", {}).get("error")
    if isinstance(rule, Conflict):
        return UserError(f"{where if key else source}: {rule}", rule.remedy)
    message = first["msg"].removeprefix("Value error, ")
    # Of keys that contradict each other the input is their whole section.
    given = "" if isinstance(first["input"], (dict, Section)) else f", not {first['input']!r}"
    return UserError(f"{where}: {message[0].lower()}{message[1:]}{given}", f"See {help}")


def _section_of(model: type[Section], path: Sequence[str]) -> type[Section]:
    """The section at the end of a path of keys, or the last one on the way."""
    for part in path:
        inner = None if part not in model.model_fields else section(model.model_fields[part])
        if inner is None:
            break
        model = inner
    return model


def section(field: FieldInfo) -> type[Section] | None:
    """The section of a field that has one, or one or None; None for another field."""
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, Section):
            return kind
    return None


def keys(model: type[Section], depth: int = MAX_DEPTH, role: Role | None = None) -> list[str]:
    """The dotted keys of a section and of those within it.

    Args:
        depth: How many levels of sections are looked into.
        role: Of the keys; None for all keys.
    """
    names = []
    for name, field in model.model_fields.items():
        inner = section(field)
        if name != SOURCE and role in (None, *field.metadata):
            names.append(name)
        if inner is not None and depth > 1:
            names += [f"{name}.{key}" for key in keys(inner, depth - 1, role)]
    return names


def nearest(model: type[Section], key: str) -> str | None:
    """The dotted key that may be meant by one that is unknown; None where none is like it.

    It is one of the same section with like letters or these initials (`lr`: `learning_rate`), or
    else one of another section with this name or these initials.
    """
    known = [one.rpartition(".") for one in keys(model)]
    parent, _, last = key.rpartition(".")
    if parent not in (parents := {one for one, _, _ in known}):
        parent = next(iter(difflib.get_close_matches(parent, parents, 1)), parent)
    names = [name for one, _, name in known if one == parent]
    meant = [(parent, name) for name in difflib.get_close_matches(last, names, 1)]
    short = [(one, name) for one, _, name in known if last in (name, _initials(name))]
    meant += sorted(short, key=lambda found: (found[0] != parent, found[1] != last))
    return ".".join(filter(None, meant[0])) if meant else None


def commented(values: Section) -> str:
    """Settings as YAML with the meaning and the range of each above it, which `parse` reads."""
    return "\n".join(_commented(values, "")) + "\n"


def _commented(values: Section, indent: str) -> Iterator[str]:
    meanings = meanings_of(type(values))
    for name, field in type(values).model_fields.items():
        value, inner = getattr(values, name), section(field)
        meaning = meanings.get(name, "")
        range = "null or these keys" if inner else _range(field.annotation, field.metadata)
        if isinstance(value, Section):
            yield from _comment(meaning, indent)
            yield f"{indent}{name}:"
            yield from _commented(value, f"{indent}  ")
            continue
        yield from _comment(f"{meaning} ({range})".strip(), indent)
        plain = values.model_dump(mode="json", include={name})[name]
        text = yaml.safe_dump(plain, default_flow_style=True, width=MAX_CHARACTERS)
        written = text.strip().removesuffix("\n...")  # which ends what is no list
        yield f"{indent}{name}: {written}"
        if inner is not None:
            yield from (f"{indent}#   {line}" for line in _commented(inner(), ""))


def meanings_of(kind: type[Section]) -> dict[str, str]:
    """The text below each field, by its name, in the source of a section or of what it extends."""
    meanings = {}
    for one in reversed(kind.__mro__[: kind.__mro__.index(Section)]):
        [definition] = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        assert isinstance(definition, ast.ClassDef)
        for field, text in pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                meaning = ast.literal_eval(text.value)
                meanings[ast.unparse(field.target)] = " ".join(meaning.split())
    return meanings


def _comment(text: str, indent: str) -> list[str]:
    mark = f"{indent}# "
    return textwrap.wrap(text, LINE, initial_indent=mark, subsequent_indent=mark)


def _range(kind: Any, rules: Sequence[Any] = ()) -> str:
    """The values that an annotation and the rules of its field allow, in words."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _range(args[0], [one for rule in args[1:] for one in getattr(rule, "metadata", ())])
    if origin is Literal:
        return " or ".join(map(str, args))
    bounds = [
        f"{sign} {value}"
        for rule in rules
        for attribute, sign in BOUNDS.items()
        if (value := getattr(rule, attribute, None)) is not None
    ]
    if origin is tuple:
        items = [_range(one) for one in args if one is not Ellipsis]
        words = f"list of: {items[0]}" if Ellipsis in args else f"[{'; '.join(items)}]"
    elif args:
        return " or ".join("null" if one is NoneType else _range(one, rules) for one in args)
    else:
        words = KINDS.get(kind, str(kind))
    return " ".join([words, ", ".join(bounds)]).strip()


def _initials(name: str) -> str:
    return "".join(word[:1] for word in name.split("_"))
