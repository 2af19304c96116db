"""`cc-train evaluate --judge` and `cc-train judge-check`, with a stand-in for the server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cc_train.evaluation.judging import asking
from tests import pair_factory, shard_factory
from tests.commands import Done, cc_train
from tests.judge_factory import JudgeServer, by_facts
from tests.server_factory import KEY, MODEL, Trouble, serving

CHANGED = {
    "a.png": "the small red metal cube turned blue",
    "b.png": "the large green rubber sphere disappeared",
    "c.png": "the small gray rubber cylinder moved",
}
PREDICTIONS = {
    "a.png": "the small red shiny block became blue",
    "b.png": "the large green rubber sphere moved",
    "c.png": "the tiny gray cylinder moved, and the large red metal cube appeared",
    "d.png": "nothing has changed",
    "e.png": "the large red metal cube appeared",
}
SWAPPED = {
    **PREDICTIONS,
    "a.png": "the small blue metal cube turned red",
    "c.png": "nothing has changed",
}
UNCHANGED = ("d.png", "e.png")


@pytest.fixture
def judge() -> Iterator[JudgeServer]:
    with serving(JudgeServer(by_facts)) as server:
        yield server


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("PATH", "")  # no Java: METEOR's start costs more than all the rest
    monkeypatch.chdir(tmp_path)
    kinds = {**dict.fromkeys(CHANGED, "change"), **dict.fromkeys(UNCHANGED, "no_change")}
    texts = {**CHANGED, **dict.fromkeys(UNCHANGED, "nothing changed")}
    files = {
        "references.json": {
            "images": [{"id": id, "kind": kind} for id, kind in kinds.items()],
            "annotations": [{"image_id": id, "caption": text} for id, text in texts.items()],
        },
        "predictions.json": PREDICTIONS,
        "swapped.json": SWAPPED,
        "differences.json": {id: [CHANGED[id]] if id in CHANGED else [] for id in texts},
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))


def evaluate(judge: JudgeServer, out: str, *more: object) -> Done:
    files = ("--predictions", "predictions.json", "--references", "references.json")
    return cc_train("evaluate", *files, "--judge", MODEL, "--judge-url", judge.address,
                    "--out", out, *more)  # fmt: skip


def read(path: str) -> Any:
    return json.loads(Path(path).read_text("utf-8"))


def values(out: str, group: str = "total") -> dict[str, float]:
    groups = read(f"{out}/scores.json")["judged"]["groups"]
    return {name: round(figure["value"], 1) for name, figure in groups[group].items()}


LISTED = ("--differences", "differences.json")


def test_captions_are_judged_against_a_list(judge: JudgeServer) -> None:
    """Keeps away: figures by another formula than the documented one, and a judge that no
    signature names.
    """
    done = evaluate(judge, "out", *LISTED, "--swapped", "swapped.json")
    assert done.returncode == 0, done.stderr
    # Of a one claim is right, of b one is wrong, of c one of two; e's is an invention.
    assert values("out") == {
        "precision": 50.0, "recall": 66.7, "F1": 57.1, "hallucination": 66.7,
        "specificity": 50.0, "reversibility": 66.7,
    }  # fmt: skip
    assert values("out", "no change") == {"specificity": 50.0}
    scores = read("out/scores.json")
    assert f"|judge:differences@1,{MODEL},words=ours," in scores["signature"]
    assert scores["judged"]["agreement"]["share"] == 1
    assert scores["swapped"]["pairs"] == 3
    assert re.search(rf"\| judged by {MODEL}, differences@1 +\| +precision \| +recall", done.stdout)
    assert "judge's own error is not measured: see cc-train judge-check" in done.stdout
    lines = Path("out/items.jsonl").read_text().splitlines()
    items = {row["id"]: row for row in map(json.loads, lines)}
    assert items["c.png"]["judged"]["matching"][0] == {"said": [[0], 1]}
    assert items["a.png"]["swapped"] == SWAPPED["a.png"]
    assert {body["max_tokens"] for body in judge.bodies} == {4096}


def test_captions_are_judged_against_the_references(judge: JudgeServer) -> None:
    """Keeps away: a run without a list that is refused, or measured by the forms of a list."""
    done = evaluate(judge, "out", "--judge-set", "max_tokens=null", "--judge-threads", 3)
    assert done.returncode == 0, done.stderr
    assert values("out") == {
        "correctness": 50.0, "completeness": 66.7, "hallucination": 66.7, "specificity": 50.0,
    }  # fmt: skip
    assert {"max_tokens" in body for body in judge.bodies} == {False}


def test_shards_and_references_are_judged_alike(judge: JudgeServer) -> None:
    """Keeps away: a run and a file of predictions that cannot be compared, since the orders were
    drawn for other names of the same pairs.
    """
    captions = [CHANGED["a.png"]]
    known = {"captions": captions, "image_id": "000007.png"}
    shard = shard_factory.write_greys(Path("shards"), 1, dataset="clevr", **known)
    Path("mine.json").write_text(json.dumps({"clevr-test-000000-change": PREDICTIONS["a.png"]}))
    asked = ("--judge", MODEL, "--judge-url", judge.address, "--out", "out")
    signatures = []
    for source in (("mine.json", "--shards", shard), ("kept.json", "--references", "refs.json")):
        done = cc_train("evaluate", "--predictions", *source, *asked)
        assert done.returncode == 0, done.stderr
        signatures.append(read("out/scores.json")["signature"])
        Path("out/predictions.json").rename("kept.json")
        Path("out/references.json").rename("refs.json")
    assert signatures[0] == signatures[1]
    assert [row["image_id"] for row in read("kept.json")] == ["000007.png"]
    count = len(judge.prompts)
    assert f"{count} of {count} answers of the judge were stored" in done.stderr


@pytest.mark.parametrize(
    ("protocol", "figures"),
    [
        ("c3-bench", {"aggregation": 5.4, "correctness": 5.4, "specificity": 5.4, "fluency": 5.4,
                      "relevance": 5.4}),
        ("diffspot", {"overall": 60.0, "recall": 66.7, "specificity": 50.0}),
    ],
)  # fmt: skip
def test_protocols_of_benchmarks(
    judge: JudgeServer, protocol: str, figures: dict[str, float]
) -> None:
    """Keeps away: a benchmark's name over figures of another scale, or in other words."""
    done = evaluate(judge, "out", "--judge-protocol", protocol)
    assert done.returncode == 0, done.stderr
    assert values("out") == figures
    assert "not asked in the official words" in done.stdout


def test_facts_of_rendered_pairs_are_a_list(judge: JudgeServer) -> None:
    """Keeps away: rendered pairs that are judged by references, though what changed is known."""
    planted = pair_factory.scene(0)[0].meta
    meta = {name: planted[name] for name in ("kind", "facts", "captions")}
    shard = shard_factory.write_greys(Path("shards"), 2, dataset="synth", **meta)
    keys = [f"synth-test-{number:06d}-change" for number in range(2)]
    Path("mine.json").write_text(json.dumps(dict.fromkeys(keys, planted["captions"][0])))
    done = cc_train("evaluate", "--predictions", "mine.json", "--shards", shard, "--out", "out",
                    "--judge", MODEL, "--judge-url", judge.address)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert values("out")["F1"] == 100


def test_what_was_answered_is_not_asked_again(judge: JudgeServer) -> None:
    """Keeps away: a run whose server fails at its end and that costs all of it again; and the plain
    scores that are lost with it.
    """

    def refusing(prompt: str) -> str | Trouble:
        return by_facts(prompt) if len(judge.prompts) < 5 else Trouble(401)

    judge.answer = refusing
    done = evaluate(judge, "out", *LISTED)
    assert done.returncode == 2
    assert "not allowed (HTTP 401). Check the key in OPENAI_API_KEY" in done.stderr
    assert "judged" not in read("out/scores.json")
    judge.answer = by_facts
    done = evaluate(judge, "out", *LISTED)
    assert done.returncode == 0, done.stderr
    assert "4 of 10 answers of the judge were stored" in done.stderr
    assert len(judge.prompts) == 11  # one of them was refused
    assert len(set(judge.prompts)) == 10
    text = "".join(path.read_text() for path in Path("out").rglob("*.json*"))
    assert KEY not in text


def test_broken_answers_are_counted_and_named(judge: JudgeServer) -> None:
    """Keeps away: a pair that the judge said nothing of and that counts as right, or as wrong."""

    def partly(prompt: str) -> str:
        if "tiny gray" in prompt:
            return "I cannot say."
        cut = "red shiny" in prompt and prompt.index("numbered") < prompt.index("judged:")
        return '{"claims": [' + JudgeServer.CUT if cut else by_facts(prompt)

    judge.answer = partly
    done = evaluate(judge, "out", *LISTED)
    assert done.returncode == 0, done.stderr
    judged = read("out/scores.json")["judged"]
    assert judged["broken"] == {"cut": 1, "no JSON": 2}
    assert (judged["broken pairs"], judged["unjudged"]) == (["a.png", "c.png"], ["c.png"])
    assert (values("out")["F1"], judged["groups"]["total"]["F1"]["pairs"]) == (50.0, 2)
    assert "3 of 10 answers cannot be read and count for nothing: 1 cut, 2 no JSON" in done.stdout
    assert "No answer about 1 pair can be read" in done.stdout


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ("", "(4 empty). If it is a model that thinks, give it more tokens: --judge-set"),
        ("yes" + JudgeServer.CUT, "(4 cut). Give it more tokens: --judge-set max_tokens=16384"),
        ("yes", "(4 no JSON). Try another --judge"),
    ],
)
def test_a_judge_that_never_answers_as_asked_is_left(
    judge: JudgeServer, monkeypatch: pytest.MonkeyPatch, answer: str, line: str
) -> None:
    """Keeps away: thousands of paid questions to a judge that says nothing, and scores of it."""
    monkeypatch.setattr(asking, "FIRST", 4)
    judge.answer = lambda prompt: answer
    done = evaluate(judge, "out", *LISTED)
    assert done.returncode == 1
    assert f"none of the first 4 answers of the judge can be read {line}" in done.stderr
    assert len(judge.prompts) == 4
    assert "judged" not in read("out/scores.json")


def check(judge: JudgeServer, out: str, *more: object) -> Done:
    return cc_train("judge-check", "--judge", MODEL, "--judge-url", judge.address, "--pairs", 6,
                    "--out", out, *more)  # fmt: skip


def test_the_error_of_a_judge_stands_beside_its_scores(judge: JudgeServer) -> None:
    """Keeps away: scores of a judge that nobody has tested, and the error of another judge."""
    judge.answer = lambda prompt: by_facts(prompt).replace('"difference": 0', '"difference": 1')
    done = check(judge, "checked")
    assert done.returncode == 0, done.stderr
    errors = read("checked/judge_check.json")["errors"]
    wrong = errors["matching"]["one word wrong"]
    assert (wrong["captions"], wrong["share"], errors["matching"]["right"]["share"]) == (3, 1, 0)
    assert "| one word wrong | 3 | 100.0 | 43.9 … 100.0 | 0 |" in done.stdout
    asked = len(judge.prompts)
    assert check(judge, "checked", "--json").returncode == 0
    assert len(judge.prompts) == asked
    done = evaluate(judge, "out", *LISTED, "--judge-check", "checked")
    assert done.returncode == 0, done.stderr
    assert "known truth (claim): unchanged, said so 0.0 %" in done.stdout
    assert "one word wrong 100.0 % (43.9 … 100.0)" in done.stdout
    done = cc_train("compare", "out", "out")
    assert f"judge: F1 by {MODEL} (differences@1). The judge's error" in done.stdout
    table = json.loads(cc_train("compare", "out", "--json").stdout)["groups"]
    assert table["total"][0]["judge"] == 100
    for more, line in (
        (("--judge-set", "seed=1"), "checked: is of another judge (generation: "),
        (("--judge-protocol", "diffspot"), "checked: is of another judge (protocol: "),
    ):
        done = evaluate(judge, "other", "--judge-check", "checked", *more)
        assert (done.returncode, line in done.stderr) == (2, True), done.stderr
    Path("checked/judge_check.json").write_text('{"errors": 1}')
    done = evaluate(judge, "other", "--judge-check", "checked")
    assert (done.returncode, "damaged" in done.stderr) == (2, True), done.stderr
    assert not Path("other").exists() or "judged" not in read("other/scores.json")


def test_two_judges_are_not_compared(judge: JudgeServer) -> None:
    """Keeps away: a system that gains because a kinder judge was asked about it."""
    assert evaluate(judge, "one").returncode == 0
    assert evaluate(judge, "other", "--judge-set", "temperature=1").returncode == 0
    done = cc_train("compare", "one", "other")
    assert (done.returncode, "other is not scored as one is: judge" in done.stderr) == (2, True)
    assert evaluate(judge, "swapped", "--swapped", "swapped.json").returncode == 0
    assert cc_train("compare", "one", "swapped").returncode == 0


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("--judge m", "--judge needs a judge and its server. Give --judge MODEL and --judge-url"),
        ("--differences differences.json", "--differences needs a judge and its server"),
        ("--judge m --judge-url x", "--judge-url is no address of a server"),
        ("--judge m --judge-url http://127.0.0.1:1/v1", "See --judge-url"),
        ("--judge m --judge-url http://h --judge-set n=2", "--judge-set n: reserved"),
        ("--judge m --judge-url http://h --judge-set n", "--judge-set n: not key=value"),
        ("--judge m --judge-url http://h --judge-check no", "no: no judge_check.json in it"),
    ],
)
def test_mistakes_name_the_options_of_the_judge(options: str, line: str) -> None:
    """Keeps away: a remedy that names an option which the command does not have."""
    done = cc_train("evaluate", "--predictions", "predictions.json", "--references",
                    "references.json", "--out", "out", *options.split())  # fmt: skip
    assert done.returncode == 2
    assert line in done.stderr


def test_lists_that_do_not_fit_are_refused(judge: JudgeServer) -> None:
    """Keeps away: a pair that is judged as unchanged because its list is missing."""
    Path("some.json").write_text('{"a.png": ["it moved"]}')
    done = evaluate(judge, "out", "--differences", "some.json")
    assert (done.returncode, "no list of b.png" in done.stderr) == (2, True)
    Path("all.json").write_text(json.dumps({id: ["it moved"] for id in PREDICTIONS}))
    done = evaluate(judge, "out", "--differences", "all.json")
    assert (done.returncode, "d.png: --differences names some" in done.stderr) == (2, True)
    assert not judge.prompts
