"""The mutation run itself: its table, its operators, and a sample that does not wander."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.mutants import table
from tests.mutants.__main__ import CAUGHT, SURVIVED, Module
from tests.mutants.mutations import changes, mutated, sample
from tests.mutants.operators import Augmented, Membership
from tests.mutants.scratch import Scratch

SOURCE = '''"""A module."""
LIMIT = 10
Problem = Exception | None


def within(count: int | None, *, step: int = 2) -> bool:
    assert step > 0
    if count is None or count in (3, 4):
        return False
    count += step
    return count < LIMIT
'''


def test_table_names_files_that_are_there() -> None:
    """Keeps away: a module that moved and is no longer tried."""
    for module, row in table.modules().items():
        for path in (module, *row.tests, *row.slow):
            assert (ROOT / path).is_file(), path
    for module, line, _ in table.equivalent():
        assert module in table.modules(), line


def test_every_reason_is_said() -> None:
    assert all(reason.strip() for reason in table.equivalent().values())


@pytest.mark.parametrize("operator", [Augmented, Membership])
def test_operators_do_as_their_examples_say(operator: type[Augmented] | type[Membership]) -> None:
    """Keeps away: an operator that changes nothing, so that all its mutants survive."""
    from cosmic_ray.mutating import mutate_code

    for example in operator.examples():
        mutated = mutate_code(str(example.pre_mutation_code), operator(), example.occurrence)
        assert mutated.split() == str(example.post_mutation_code).split()


def test_mutants_change_code_and_neither_annotations_nor_assertions() -> None:
    """Keeps away: mutants that no test can catch, in the figures."""
    mutants = list(filter(None, (mutated(change, SOURCE) for change in changes("m.py", SOURCE))))
    assert {mutant.line for mutant in mutants} == {2, 6, 8, 9, 10, 11}
    signature = [mutant.after for mutant in mutants if mutant.line == 6]
    assert len(signature) == 2
    assert all("int | None" in after for after in signature)
    texts = [(mutant.line, mutant.before, mutant.after) for mutant in mutants]
    assert (11, "return count < LIMIT", "return count <= LIMIT") in texts


def test_amounts_that_somebody_chose_stay() -> None:
    """Keeps away: tests that repeat a constant, since its mutants would survive without them."""
    source = "SHOWN, CODES = 80, (404,)\nBYTES = 4 * 1024\nMOST = 3\nprint(text[:80], text[:2])\n"
    source += 'LIMITS: Numbers = {"most": 4096}\nclass Pause:\n    seconds: float = 600.0\n'
    assert {change.text for change in changes("m.py", source)} == {
        "SHOWN, CODES = 80, (404,)", "MOST = 3", "print(text[:80], text[:2])"
    }  # fmt: skip
    numbers = [source.splitlines()[line - 1][start:end] for (line, start), (_, end) in
               {change.site for change in changes("m.py", source)}]  # fmt: skip
    assert sorted(numbers) == ["2", "3", "404"]


def test_a_sample_stays_when_other_lines_move() -> None:
    """Keeps away: a comment that changes which mutants are tried, and with them the figures."""
    before = sample("m.py", SOURCE, 4, seed=0)
    after = sample("m.py", SOURCE.replace("LIMIT = 10", "\n# A comment.\nLIMIT = 10"), 4, seed=0)
    assert [m.change.key for m in before] == [m.change.key for m in after]
    assert [mutant.line + 2 for mutant in before] == [mutant.line for mutant in after]
    assert len({mutant.change.site for mutant in before}) == 4
    another = sample("m.py", SOURCE, 4, seed=1)
    assert [mutant.change.key for mutant in another] != [mutant.change.key for mutant in before]


def test_what_no_test_notices_survives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Keeps away: a run that counts every mutant as caught, or as survived."""
    copy = Scratch(tmp_path, ("pytest", "hypothesis"))
    try:
        (tmp_path / "m.py").write_text(SOURCE)
        checks = "import m\n\ndef test():\n    assert m.within(7) and not m.within(8)\n"
        (tmp_path / "test_m.py").write_text(checks)
        tries = Module(copy, "m.py", table.Row(("test_m.py",)), slow=False, earlier={})
        verdicts = tries.run(99, 0, {}, tmp_path / "results.jsonl")
    finally:
        assert copy.server.stdin is not None
        copy.server.stdin.close()
        copy.server.wait()
    printed = capsys.readouterr().out.splitlines()
    survivors = [line.strip() for line in printed if line.startswith("    - ")]
    # Nothing asks for None, 3 or 4; the limit and the step are checked.
    assert set(survivors) <= {"- return False", "- if count is None or count in (3, 4):"}
    assert verdicts[SURVIVED] == len(survivors) > 0
    assert verdicts[CAUGHT] >= 3
    assert (tmp_path / "m.py").read_text() == SOURCE


def test_reasons_for_lines_that_are_gone_are_named(tmp_path: Path) -> None:
    """Keeps away: reasons that nobody clears away, until one fits a new line by chance."""
    (tmp_path / "m.py").write_text(SOURCE)
    known = [("m.py", "count += step", "count -= step"), ("m.py", "x = 1", "x = 2")]
    assert table.stale(known, tmp_path) == [("m.py", "x = 1")]
