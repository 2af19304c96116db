"""`python -m tests.mutants`: tries a sample of mutants; exit code 1 where too few are caught."""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.mutants import table
from tests.mutants.mutations import Mutant, sample
from tests.mutants.scratch import Scratch, scratch
from tests.mutants.warm import LOG

ROOT = Path(__file__).parent.parent.parent
CAUGHT, CAUGHT_LATE, SURVIVED, EQUIVALENT = "caught", "caught late", "survived", "cannot matter"
PASSED, FAILED, INTERRUPTED = 0, 1, 2
# A mutant may need so many times the time of the unchanged module, and so many seconds more.
SLOWER, SECONDS_MORE = 3, 20


def main() -> None:
    """Prints each survivor and a table; see --help."""
    options = arguments()
    earlier = read_results(options.results)
    known = table.equivalent()
    results: dict[str, Counter[str]] = {}
    with scratch(ROOT) as copy:
        for module, row in table.modules().items():
            if any(fnmatch.fnmatch(module, pattern) for pattern in options.modules):
                tries = Module(copy, module, row, options.slow, earlier)
                results[module] = tries.run(options.sample, options.seed, known, options.results)
    report(results)
    for module, line in table.stale(known, ROOT):
        print(f"equivalent.yaml: {module} has no such line any more: {line}")
    total = sum(results.values(), Counter[str]())
    tried = total[CAUGHT] + total[CAUGHT_LATE] + total[SURVIVED]
    share = (tried - total[SURVIVED]) / max(tried, 1)
    print(f"\n{share:.1%} of {tried} mutants are caught; the aim is {options.aim:.0%}")
    sys.exit(int(share < options.aim))


def arguments() -> argparse.Namespace:
    """The command line's."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument(
        "--modules", nargs="+", default=["*"], help="only these, such as 'cc_prep/formats/*'"
    )
    parser.add_argument("--sample", type=int, default=10, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--slow", action="store_true", help="survivors meet the slow tests, too")
    parser.add_argument("--aim", type=float, default=0.9, help="share that has to be caught")
    parser.add_argument(
        "--results",
        type=Path,
        default=ROOT / "out/mutants/results.jsonl",
        help="what earlier runs found, which is not tried again while module and tests stay",
    )
    return parser.parse_args()


class Module:
    """The mutants of one module, and the tests that should catch them."""

    def __init__(
        self, copy: Scratch, module: str, row: table.Row, slow: bool, earlier: dict[str, Any]
    ) -> None:
        self.copy, self.module, self.earlier = copy, module, earlier
        self.stages = {CAUGHT: row.tests, CAUGHT_LATE: row.slow if slow else ()}
        self.source = (copy.folder / module).read_text()
        texts = [
            (copy.folder / name).read_text() for name in (*row.tests, *self.stages[CAUGHT_LATE])
        ]
        self.digest = hashlib.sha256("\0".join((self.source, *texts)).encode()).hexdigest()
        self.limits: dict[str, float] = {}

    def run(
        self, count: int, seed: int, known: dict[tuple[str, str, str], str], results: Path
    ) -> Counter[str]:
        """How many mutants ended in which way; prints them."""
        print(f"\n{self.module}", flush=True)
        verdicts: Counter[str] = Counter()
        for mutant in sample(self.module, self.source, count, seed):
            if (self.module, mutant.before, mutant.after) in known:
                verdicts[EQUIVALENT] += 1
                continue
            name = f"{self.digest}\n{mutant.change.key}"
            if name not in self.earlier:
                self.earlier[name] = self.outcome(mutant)
                results.parent.mkdir(parents=True, exist_ok=True)
                with results.open("a") as file:
                    file.write(json.dumps({"name": name, "outcome": self.earlier[name]}) + "\n")
            outcome = self.earlier[name]
            verdicts[outcome["verdict"]] += 1
            show(mutant, outcome)
        return verdicts

    def outcome(self, mutant: Mutant) -> dict[str, Any]:
        """The first stage of tests that catches it, if one does."""
        for verdict, tests in self.stages.items():
            if not tests:
                continue
            limit = self.limit(verdict)
            with self.copy.mutated(self.module, mutant.source):
                answer = self.copy.run(tests, limit)
            if answer["ended"] != PASSED:
                return {"verdict": verdict, **answer}
        return {"verdict": SURVIVED, **answer}

    def limit(self, verdict: str) -> float:
        """Seconds that a mutant gets, by those of the unchanged module, which has to pass."""
        if verdict not in self.limits:
            answer = self.copy.run(self.stages[verdict], 3600)
            if answer["ended"] != PASSED:
                log = (self.copy.folder / LOG).read_text(errors="replace")
                sys.exit(f"{log}\n{self.module}: its tests fail without a mutant: {answer}")
            print(f"  unchanged: {answer['seconds']} s", flush=True)
            self.limits[verdict] = SLOWER * answer["seconds"] + SECONDS_MORE
        return self.limits[verdict]


def show(mutant: Mutant, outcome: dict[str, Any]) -> None:
    """One line for a mutant that was caught; the change, too, for a survivor."""
    how = outcome["first"].rpartition("/")[2]
    if outcome["ended"] not in (PASSED, FAILED, INTERRUPTED):
        how = f"{outcome['ended']} {how}"
    place = f"{mutant.change.module}:{mutant.line}"
    print(f"  {outcome['verdict']:11} {place} {outcome['seconds']} s {how}", flush=True)
    if outcome["verdict"] == SURVIVED:
        print(f"    - {mutant.before}\n    + {mutant.after}", flush=True)


def report(results: dict[str, Counter[str]]) -> None:
    """A row for each module."""
    columns = (CAUGHT, CAUGHT_LATE, SURVIVED, EQUIVALENT)
    print(f"\n{'module':55}" + "".join(f"{column:>15}" for column in columns))
    for module, verdicts in results.items():
        print(f"{module:55}" + "".join(f"{verdicts[column]:15}" for column in columns))


def read_results(path: Path) -> dict[str, Any]:
    """Outcomes of earlier runs by module, tests and mutant."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["name"]: line["outcome"] for line in lines}


if __name__ == "__main__":
    main()
