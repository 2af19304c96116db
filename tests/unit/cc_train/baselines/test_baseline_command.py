"""`cc-train baseline` from shards to scores: resuming, threads, what is written and what is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cc_prep.records import Facts
from cc_train.baselines import run as command
from cc_train.evaluation import evaluation
from tests import pair_factory, shard_factory, vlm_factory
from tests.commands import Done, cc_train
from tests.conftest import ROOT
from tests.server_factory import KEY, MODEL, ChatServer, Said, Trouble, serving

PAIRS = 6


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> str:
    return shard_factory.write_greys(tmp_path_factory.mktemp("shards"), PAIRS)


def arguments(chat: ChatServer, shard: str, out: Path, *more: object) -> list[str]:
    own = ["baseline", "--url", chat.address, "--model", MODEL, "--shards", shard, "--out", out]
    return [str(part) for part in (*own, *more)]


def baseline(chat: ChatServer, shard: str, out: Path, *more: object) -> Done:
    return cc_train(*arguments(chat, shard, out, *more))


def read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def test_captions_are_scored_like_any_other(chat: ChatServer, shard: str, tmp_path: Path) -> None:
    """Keeps away: predictions under keys that `evaluate` does not know, or scores of its own."""
    out = tmp_path / "seer"
    done = baseline(chat, shard, out, "--json")
    assert done.returncode == 0, done.stderr
    scores = read(out / "scores.json")
    assert scores["groups"]["total"]["BLEU-4"] == pytest.approx(100)
    assert "subset:all" in scores["signature"]
    again = cc_train("evaluate", "--predictions", out / "predictions.json", "--shards", shard,
                     "--out", tmp_path / "again")  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert read(tmp_path / "again/scores.json") == scores == json.loads(done.stdout)
    compared = cc_train("compare", out, tmp_path / "again", "--json")
    rows = json.loads(compared.stdout)["groups"]["total"]
    assert [row["system"] for row in rows] == ["seer", "again"]


def test_no_scores_of_a_trial_stay_beside_the_captions_of_all(
    chat: ChatServer, shard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a comparison that shows the scores of 2 pairs for the captions of 6."""
    out = tmp_path / "out"
    options = {"shards": (shard,), "out": str(out), "model": MODEL, "url": chat.address}
    command.baseline(**options, limit=2)
    assert (out / "scores.json").exists()
    monkeypatch.setattr(evaluation, "evaluate", lambda *_, **__: sys.exit("no memory"))
    with pytest.raises(SystemExit):
        command.baseline(**options)
    assert len(read(out / "predictions.json")) == PAIRS
    assert not (out / "scores.json").exists()


def test_what_is_right_of_rendered_pairs_is_counted(tmp_path: Path) -> None:
    """Keeps away: facts that the shards hold and a baseline's scores leave out."""
    planted = pair_factory.scene(0)[0].meta
    meta = {name: planted[name] for name in ("kind", "facts", "captions")}
    shard = shard_factory.write_greys(tmp_path / "shards", 3, dataset="synth", **meta)
    true = planted["captions"][0]
    with serving(ChatServer(lambda before, _: true if before < 3 else "nothing changed")) as chat:
        baseline(chat, shard, tmp_path / "out")
    facts = read(tmp_path / "out/scores.json")["facts"]
    assert (facts["changed pairs"]["right"], facts["changed pairs"]["pairs"]) == (2, 3)
    [exact] = facts["exact by type"].values()
    assert (exact["right"], exact["pairs"]) == (2, 3)


def test_pairs_without_facts_are_not_asked_about_cubes(chat: ChatServer, tmp_path: Path) -> None:
    """Keeps away: a question about rendered scenes for photographs that were built as `pairs`."""
    folders = [shard_factory.write_greys(tmp_path / "photographs", 1, dataset="pairs")]
    planted = pair_factory.scene(0)[0].meta
    meta = {name: planted[name] for name in ("kind", "facts", "captions")}
    folders.append(shard_factory.write_greys(tmp_path / "rendered", 1, dataset="pairs", **meta))
    meta["facts"] = Facts("none", grammar="composites").to_json()
    folders.append(shard_factory.write_greys(tmp_path / "composed", 1, dataset="pairs", **meta))
    asked = []
    for number, folder in enumerate(folders):
        out = tmp_path / f"out{number}"
        command.baseline(shards=(folder,), out=str(out), model=MODEL, url=chat.address)
        asked.append(read(out / "baseline.json")["wordings"]["pairs"]["prompt"])
    assert ["cubes" in prompt for prompt in asked] == [False, True, False]


def test_a_killed_run_asks_nothing_again(chat: ChatServer, shard: str, tmp_path: Path) -> None:
    """Keeps away: answers that are stored at the end, so that a kill costs all of them."""
    chat.hold = 3
    out = tmp_path / "out"
    command = [sys.executable, "-m", "cc_train", *arguments(chat, shard, out)]
    run = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert chat.held.wait(120)
    run.send_signal(signal.SIGKILL)
    run.wait()
    chat.release.set()
    assert not (out / "predictions.json").exists()
    assert chat.seen.total() == 3
    chat.hold = None
    done = baseline(chat, shard, out)
    assert done.returncode == 0, done.stderr
    assert f"3 of {PAIRS} answers were stored" in done.stderr
    assert chat.seen == {(2 * n, 2 * n + 1): 1 for n in range(PAIRS)}
    assert not [path for path in out.rglob("*") if path.name.endswith(".tmp")]
    captions = {row["image_id"]: row["caption"] for row in read(out / "predictions.json")}
    assert captions == {
        f"spot-test-{n:06d}-change": f"from {2 * n} to {2 * n + 1}" for n in range(PAIRS)
    }


def test_threads_ask_at_once_and_each_question_once(chat: ChatServer, tmp_path: Path) -> None:
    """Keeps away: threads that ask twice for pairs of the same images, and answers out of order."""
    folder = tmp_path / "shards"
    shards = [shard_factory.write_greys(folder / name, 4, name) for name in ("test", "val")]
    done = baseline(chat, shards[0], tmp_path / "out", "--shards", shards[1], "--threads", 3)
    assert done.returncode == 0, done.stderr
    assert set(chat.seen.values()) == {1}
    assert len(chat.seen) == 4
    assert chat.most_under_way <= 3
    rows = read(tmp_path / "out/predictions.json")
    assert [row["caption"] for row in rows] == [
        f"from {2 * n} to {2 * n + 1}" for n in range(4)
    ] * 2


def test_threads_stop_at_an_error(tmp_path: Path) -> None:
    """Keeps away: thousands of requests that are sent after the key was refused, since the first
    question takes long and the others' errors are seen only after it.
    """
    shard = shard_factory.write_greys(tmp_path / "shards", 30)

    def answer(before: float, _: float) -> str | Trouble:
        time.sleep(1.0 if before < 1 else 0.0)
        return "slow" if before < 1 else Trouble(401)

    with serving(ChatServer(answer)) as chat:
        done = baseline(chat, shard, tmp_path / "out", "--threads", 2)
        assert len(chat.bodies) <= 3
    assert done.returncode == 2
    assert "not allowed (HTTP 401)" in done.stderr
    assert done.stderr.strip().count("\n") == 0
    assert not (tmp_path / "out/baseline.json").exists()  # and so a better command may follow
    [stored] = (tmp_path / "out/answers").rglob("*.json")
    assert read(stored)["answer"] == "slow"


def test_the_key_is_in_no_file_and_no_line(chat: ChatServer, shard: str, tmp_path: Path) -> None:
    """Keeps away: a folder of results that is published, with the key in it."""
    done = baseline(chat, shard, tmp_path / "out")
    assert chat.headers[0]["Authorization"].endswith(KEY)
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) > PAIRS
    assert not [path for path in files if KEY in path.read_text("utf-8")]
    assert KEY not in done.stdout + done.stderr


def test_a_trial_is_gone_on_with(chat: ChatServer, shard: str, tmp_path: Path) -> None:
    """Keeps away: scores of a few pairs that look like scores of all."""
    baseline(chat, shard, tmp_path / "out", "--limit", 2)
    assert "pairs:2|" in read(tmp_path / "out/scores.json")["signature"]
    assert "subset:predicted" in read(tmp_path / "out/scores.json")["signature"]
    baseline(chat, shard, tmp_path / "out", "--limit", 100)
    assert "subset:all" in read(tmp_path / "out/scores.json")["signature"]
    assert set(chat.seen.values()) == {1}
    assert chat.seen.total() == PAIRS


def test_a_trial_of_several_data_sets_is_gone_on_with(chat: ChatServer, tmp_path: Path) -> None:
    """Keeps away: paid answers that are refused, since the trial came to one data set only."""
    shards = [
        shard_factory.write_greys(tmp_path / name, 2, dataset=name) for name in ("spot", "levir")
    ]
    more = ("--shards", shards[1])
    baseline(chat, shards[0], tmp_path / "out", *more, "--limit", 1)
    done = baseline(chat, shards[0], tmp_path / "out", *more)
    assert done.returncode == 0, done.stderr
    assert "1 of 4 answers were stored" in done.stderr


def test_another_baseline_does_not_go_into_the_folder(shard: str, tmp_path: Path) -> None:
    """Keeps away: a folder whose baseline.json names another prompt than its captions had."""
    out = tmp_path / "out"
    with serving(ChatServer()) as chat:
        baseline(chat, shard, out, "--set", "max_tokens=9")
    with serving(ChatServer()) as moved:
        for change in (["--prompt", "What?"], ["--set", "max_tokens=8"]):
            done = baseline(moved, shard, out, *change)
            assert done.returncode == 2
            assert "holds the captions of another baseline" in done.stderr
        done = baseline(moved, shard, out, "--set", "max_tokens=9")
        assert done.returncode == 0, done.stderr
        assert not moved.bodies


def test_empty_and_cut_answers_are_counted(shard: str, tmp_path: Path) -> None:
    """Keeps away: low scores whose cause, a limit of tokens, nobody sees."""
    folder = vlm_factory.save_chat(tmp_path, "smolvlm")
    done = cc_train("baseline", "--model", folder, "--shards", shard, "--out", tmp_path / "out",
                    "--set", "max_new_tokens=3", "--batch-size", 4)  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = read(tmp_path / "out/baseline.json")
    assert record["answers"]["pairs"] == record["answers"]["cut"] == PAIRS
    assert f"{PAIRS} answers were cut at the limit of tokens" in done.stderr
    assert (record["model"], record["precision"]) == ("smolvlm", "float32")
    with serving(ChatServer(lambda before, _: "" if before < 3 else "a car")) as chat:
        done = baseline(chat, shard, tmp_path / "empty")
    assert "2 answers are empty, and score 0" in done.stderr
    assert read(tmp_path / "empty/baseline.json")["answers"]["empty"] == 2


def test_a_model_that_thinks_too_long_ends_the_run(tmp_path: Path) -> None:
    """Keeps away: scores of 0 after hours of asking a model whose thoughts fill all its tokens, and
    a folder that refuses the settings which help.
    """
    shard = shard_factory.write_greys(tmp_path / "shards", 12)
    with serving(ChatServer(lambda *_: Said("", "A car? Or a", ended="length"))) as chat:
        done = baseline(chat, shard, tmp_path / "out", "--threads", 2)
        assert 5 <= len(chat.bodies) <= 8
        assert chat.bodies[0]["max_tokens"] == 4096
        assert done.returncode == 1
        assert "the first 5 answers are empty: the limit of tokens cut the" in done.stderr
        assert "--set max_tokens=16384" in done.stderr
        assert not (tmp_path / "out/scores.json").exists()
        chat.answer = lambda *_: Said(None, "A car?\n\nA car left.", "thinking")
        done = baseline(chat, shard, tmp_path / "out", "--set", "max_tokens=16384")
    assert done.returncode == 0, done.stderr
    assert "12 answers were found among the model's thoughts" in done.stderr
    assert read(tmp_path / "out/predictions.json")[0]["caption"] == "A car left."
    assert read(tmp_path / "out/baseline.json")["answers"]["in_thoughts"] == 12


def test_a_run_without_any_word_ends(shard: str, tmp_path: Path) -> None:
    """Keeps away: exit code 0 for captions that are all empty, though few or filtered."""
    with serving(ChatServer(lambda *_: "")) as chat:
        done = baseline(chat, shard, tmp_path / "few", "--limit", 2)
        assert done.returncode == 1
        assert "the first 2 answers are empty: see what the model said in" in done.stderr
        refusal = Trouble(400, body={"error": {"code": "content_filter"}})
        chat.answer = lambda *_: refusal
        done = baseline(chat, shard, tmp_path / "all")
    assert done.returncode == 1
    assert f"the first {PAIRS} answers are empty: the server refuses" in done.stderr


def test_examples_come_before_the_question(chat: ChatServer, shard: str, tmp_path: Path) -> None:
    """Keeps away: examples of the pairs that are asked about, of other data sets, or without their
    captions; and answers with examples that are taken for those without.
    """
    train = shard_factory.write_greys(tmp_path / "train", 9, "train")
    levir = shard_factory.write_greys(tmp_path / "levir", 3, "train", dataset="levir")
    out = tmp_path / "out"
    chat.shots = 3
    shots = ("--examples", train, "--examples", levir, "--shots", 3)
    done = baseline(chat, shard, out, *shots, "--limit", 2)
    assert done.returncode == 0, done.stderr
    assert len({json.dumps(body["messages"][:-1]) for body in chat.bodies}) == 1
    shown = [message["content"] for message in chat.bodies[0]["messages"][1::2]]
    keys = read(out / "baseline.json")["examples"]["spot"]
    assert shown == [f"from {2 * int(k[11:17])} to {2 * int(k[11:17]) + 1}" for k in keys]
    assert len(set(keys)) == 3
    done = baseline(chat, shard, out, "--limit", 2)
    assert "holds the captions of another baseline" in done.stderr
    for more, line in (
        (("--examples", shard), "would be an example and is asked about"),
        (("--examples", levir), "--examples holds 0 captioned pairs of spot, and --shots is 4"),
        (("--shots", 3), "--shots without --examples"),
    ):
        done = baseline(chat, shard, tmp_path / "other", *more)
        assert done.returncode == 2
        assert line in done.stderr
    assert len(chat.bodies) == 2


def test_swapped_pairs_are_asked_about(tmp_path: Path) -> None:
    """Keeps away: reversibility of 100 % where no pair was asked about in the other order."""
    shards = [
        shard_factory.write_greys(tmp_path / "changed", 3),
        shard_factory.write_greys(tmp_path / "same", 2, "val", kind="no_change"),
    ]
    deaf = "from 2 to 3"
    answer = lambda a, b: deaf if {a, b} == {2, 3} else f"from {a:.0f} to {b:.0f}"  # noqa: E731
    with serving(ChatServer(answer)) as chat:
        done = baseline(chat, shards[0], tmp_path / "out", "--shards", shards[1], "--swapped")
        assert done.returncode == 0, done.stderr
        assert chat.seen == {(0, 1): 1, (2, 3): 1, (4, 5): 1, (1, 0): 1, (3, 2): 1, (5, 4): 1}
    swapped = read(tmp_path / "out/scores.json")["swapped"]
    assert swapped["pairs"] == 3
    assert swapped["same"] == pytest.approx(1 / 3)
    assert "33.3 % of the captions of changed pairs stay the same" in done.stdout


def test_what_is_around_sentences_is_counted(shard: str, tmp_path: Path) -> None:
    """Keeps away: scores that "Answer:" lowers in silence, and answers that are paid for twice."""
    answer = lambda a, b: f"**Answer:** from {a:.0f} to {b:.0f}"  # noqa: E731
    with serving(ChatServer(answer)) as chat:
        done = baseline(chat, shard, tmp_path / "out")
        assert f"{PAIRS} answers have more around the sentence" in done.stderr
        assert read(tmp_path / "out/baseline.json")["answers"]["decorated"] == PAIRS
        lower = read(tmp_path / "out/scores.json")["groups"]["total"]["BLEU-4"]
        done = baseline(chat, shard, tmp_path / "out", "--plain")
        assert len(chat.bodies) == PAIRS
    assert done.returncode == 0, done.stderr
    assert "around the sentence" not in done.stderr
    assert lower < read(tmp_path / "out/scores.json")["groups"]["total"]["BLEU-4"]
    assert read(tmp_path / "out/baseline.json")["plain"] is True


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--batch-size", "2"], "--batch-size is of a local model"),
        (["--device", "cpu"], "--device is of a local model"),
        (["--protocol", "none"], "no protocol is named none"),
        (["--protocol", "spot-single"], "1,263 pairs are to be scored"),
        (["--set", "model=x"], "--set model: reserved by this command"),
    ],
)
def test_options_that_do_not_go_together(
    chat: ChatServer, shard: str, tmp_path: Path, options: list[str], line: str
) -> None:
    """Keeps away: an option that has no effect, and a mistake that shows after hours of asking."""
    done = baseline(chat, shard, tmp_path / "out", *options)
    assert done.returncode == 2
    assert line in done.stderr
    assert not chat.bodies
    assert not (tmp_path / "out").exists()


def test_options_of_servers_need_one(shard: str, tmp_path: Path) -> None:
    """Keeps away: an option that is taken and has no effect."""
    options = {"--threads": 1, "--requests-per-minute": 3, "--tries": 8, "--timeout": 120,
               "--key-variable": "OPENAI_API_KEY", "--no-probe": None}  # fmt: skip
    for option, value in options.items():
        given = [option] if value is None else [option, value]
        done = cc_train("baseline", "--model", tmp_path, "--shards", shard, "--out", tmp_path / "o",
                        *given)  # fmt: skip
        assert done.returncode == 2
        assert f"{option} is of --url" in done.stderr
