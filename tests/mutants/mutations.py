"""Every change of a module, and a sample of them that stays while others edit the module.

A change is known by its file, the text of its line and its operator, and not by the line's number.
The sample takes the changes whose digests are smallest.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator

from tests.mutants.operators import Span, operators

# From here on, one more of a limit or an amount is no mistake: a test could only repeat the figure.
MANY = 20
KEYWORDS_FOLLOW = re.compile(r"\*\s*,")  # among parameters, where `/` would be Python too


@dataclass(frozen=True)
class Change:
    """What an operator can do at one place.

    occurrence: the operator's places before it in the module. twin: those before it in lines of
    the same text. site: the changed operator's or constant's place, which several changes share.
    """

    module: str
    operator: Operator
    occurrence: int
    text: str
    twin: int
    site: Span

    @property
    def key(self) -> str:
        """What the change is called in the results of earlier runs."""
        return "\n".join((self.module, self.text, type(self.operator).__name__, str(self.twin)))

    def rank(self, seed: int) -> str:
        """Where it stands in the order of that seed."""
        return hashlib.sha256(f"{seed}\n{self.key}".encode()).hexdigest()


@dataclass(frozen=True)
class Mutant:
    """A module with one change made.

    line: number of the first changed line, from 1. before, after: the changed lines without
    indents, joined by " ⏎ ". source: the whole module.
    """

    change: Change
    line: int
    before: str
    after: str
    source: str


def sample(module: str, source: str, count: int, seed: int) -> list[Mutant]:
    """At most `count` mutants, at most one of each place in the code, in the code's order."""
    mutant_at: dict[Span, Mutant] = {}
    for change in sorted(changes(module, source), key=lambda change: change.rank(seed)):
        if len(mutant_at) == count:
            break
        mutant = None if change.site in mutant_at else mutated(change, source)
        if mutant is not None:
            mutant_at[change.site] = mutant
    return sorted(mutant_at.values(), key=lambda mutant: mutant.change.site)


def changes(module: str, source: str) -> Iterator[Change]:
    """All changes of a module, in the order of operators, then of places."""
    unwatched, lines = _unwatched(source), source.splitlines()
    nodes = list(ast_nodes(get_ast(source)))
    for operator in operators():
        twins: dict[str, int] = {}
        sites = [site for node in nodes for site in operator.mutation_positions(node)]
        for occurrence, site in enumerate(sites):
            line = lines[site[0][0] - 1]
            is_marker = KEYWORDS_FOLLOW.match(line, site[0][1])
            if not is_marker and not any(start <= site[0] < end for start, end in unwatched):
                text = line.strip()
                twin = twins.get(text, 0)
                twins[text] = twin + 1
                yield Change(module, operator, occurrence, text, twin, site)


def mutated(change: Change, source: str) -> Mutant | None:
    """The module with the change made; None where that is no Python, or the same module."""
    result = mutate_code(source, change.operator, change.occurrence)
    if result is None or result == source:
        return None
    try:
        compile(result, change.module, "exec")
    except SyntaxError:
        return None
    return Mutant(change, *_changed(source, result), result)


def _unwatched(source: str) -> list[Span]:
    """Where no test can notice a change: annotations, decorators, and assertions, which hold.

    `strict=True` of a zip is an assertion, a union of types an annotation. Nor would a user notice
    one more or less of an amount that somebody chose: a constant or a field's default of MANY and
    more, a size such as `1 << 20` or `16 * 1024`, and how many letters of a value a message shows.
    """
    nodes: list[ast.AST | None] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assert):
            nodes.append(node)
        elif isinstance(node, ast.arg | ast.AnnAssign):
            nodes.append(node.annotation)
        elif isinstance(node, ast.FunctionDef):
            nodes += [node.returns, *node.decorator_list]
        elif isinstance(node, ast.Module | ast.ClassDef):
            nodes += [*_amounts(node), *getattr(node, "decorator_list", ())]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "zip":
            nodes += [option.value for option in node.keywords]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and _type(node):
            nodes.append(node)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
            nodes += [node] if _number(node.left) and _number(node.right) else []
        elif isinstance(node, ast.Slice) and _number(node.upper) >= MANY:
            nodes.append(node.upper)
    return [
        ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
        for node in nodes
        if isinstance(node, ast.stmt | ast.expr)
    ]


def _amounts(node: ast.Module | ast.ClassDef) -> list[ast.expr]:
    """The values of constants and fields that are MANY or more, or such as `16 * 1024`."""
    values: list[ast.expr | None] = []
    for line in node.body:
        match line:
            case ast.Assign(targets=[ast.Tuple()], value=ast.Tuple(elts=several)):
                values += several
            case ast.Assign(value=ast.Dict(values=several)):
                values += several
            case ast.AnnAssign(value=ast.Dict(values=several)):
                values += several
            case ast.Assign(value=one) | ast.AnnAssign(value=one):
                values.append(one)
    return [one for one in values if one is not None and _is_amount(one)]


def _is_amount(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return bool(_number(node.left) and _number(node.right))
    return _number(node) >= MANY


def _number(node: ast.AST | None) -> float:
    """A literal number; 0 for all else."""
    value = node.value if isinstance(node, ast.Constant) else 0
    return value if isinstance(value, int | float) else 0


def _type(node: ast.expr) -> bool:
    """Whether an expression looks like a union of types: `Path | None`, `Shard | Item`."""
    if isinstance(node, ast.BinOp):
        return _type(node.left) and _type(node.right)
    none = isinstance(node, ast.Constant) and node.value is None
    return none or (isinstance(node, ast.Name) and node.id[:1].isupper())


def _changed(source: str, mutated: str) -> tuple[int, str, str]:
    one, other = source.splitlines(), mutated.splitlines()
    spans = [
        span
        for span in difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
        if span[0] != "equal"
    ]
    first, last = spans[0], spans[-1]
    before, after = (
        " ⏎ ".join(line.strip() for line in lines)
        for lines in (one[first[1] : last[2]], other[first[3] : last[4]])
    )
    return first[1] + 1, before, " ".join(after.split())
