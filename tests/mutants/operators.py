"""Which changes a mutant may have: cosmic-ray's operators, and two that it lacks.

Replacements that can only raise a TypeError (`+` by `>>`), and those of equal effect for the values
that Python shares (`==` by `is`), are left out: they would make the share of caught mutants look
better or worse than the tests are.
"""

from __future__ import annotations

from collections.abc import Iterator

import parso
from cosmic_ray.operators import provider
from cosmic_ray.operators.operator import Example, Operator
from parso.python.tree import Operator as Token
from parso.tree import NodeOrLeaf

COMPARISONS = {
    "Eq": ("NotEq",),
    "NotEq": ("Eq",),
    "Lt": ("LtE", "Gt", "GtE"),
    "LtE": ("Lt", "Gt", "GtE"),
    "Gt": ("GtE", "Lt", "LtE"),
    "GtE": ("Gt", "Lt", "LtE"),
    "Is": ("IsNot",),
    "IsNot": ("Is",),
}
ARITHMETIC = {
    "Add": ("Sub",),
    "Sub": ("Add",),
    "Mul": ("Div", "Add"),
    "Div": ("Mul", "Sub"),
    "FloorDiv": ("Mul", "Mod"),
    "Mod": ("FloorDiv",),
    "Pow": ("Mul",),
    "BitAnd": ("BitOr",),
    "BitOr": ("BitAnd",),
}
OTHERS = (
    "ReplaceUnaryOperator_USub_UAdd",
    "ReplaceUnaryOperator_Delete_Invert",
    "ReplaceUnaryOperator_Delete_Not",
    "AddNot",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "NumberReplacer",
    "ZeroIterationForLoop",
)

Span = tuple[tuple[int, int], tuple[int, int]]


class Augmented(Operator):
    """`a += b` becomes `a -= b`, and back."""

    SWAPPED = {"+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=", "|=": "&=", "&=": "|="}  # noqa: RUF012

    def mutation_positions(self, node: NodeOrLeaf) -> Iterator[Span]:
        if isinstance(node, Token) and node.value in self.SWAPPED:
            yield node.start_pos, node.end_pos

    def mutate(self, node: Token, index: int) -> Token:
        node.value = self.SWAPPED[node.value]
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("a += 1", "a -= 1"), Example("a |= b", "a &= b"))


class Membership(Operator):
    """`a in b` becomes `a not in b`, and back."""

    SWAPPED = {"in": "not in", "notin": "in"}  # noqa: RUF012

    def _operators(self, node: NodeOrLeaf) -> list[int]:
        if node.type != "comparison":
            return []
        places = range(1, len(node.children), 2)
        return [i for i in places if self._text(node.children[i]) in self.SWAPPED]

    @staticmethod
    def _text(node: NodeOrLeaf) -> str:
        return "".join(str(node.get_code()).split())

    def mutation_positions(self, node: NodeOrLeaf) -> Iterator[Span]:
        for place in self._operators(node):
            yield node.children[place].start_pos, node.children[place].end_pos

    def mutate(self, node: NodeOrLeaf, index: int) -> NodeOrLeaf:
        place = self._operators(node)[index]
        becomes = self.SWAPPED[self._text(node.children[place])]
        node.children[place] = parso.parse(f" {becomes}")
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            Example("if a in b: pass", "if a not in b: pass"),
            Example("x = a not in b", "x = a in b"),
        )


def operators() -> list[Operator]:
    """One of each."""
    theirs = provider.OperatorProvider()
    names = [
        *(f"ReplaceComparisonOperator_{a}_{b}" for a, to in COMPARISONS.items() for b in to),
        *(f"ReplaceBinaryOperator_{a}_{b}" for a, to in ARITHMETIC.items() for b in to),
        *OTHERS,
    ]
    return [*(theirs[name]() for name in names), Augmented(), Membership()]
