"""Signatures: what changes them, what does not, and that scores with different ones stay apart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cc_prep.errors import UserError
from cc_prep.records import Facts
from cc_prep.synth.facts import attributes as solid
from cc_train.evaluation import evaluation, signature
from cc_train.evaluation.captions import coco, metrics
from cc_train.evaluation.comparing import bootstrap, scored_rows, several_runs, side_by_side
from cc_train.report import latex
from tests.commands import cc_train

ITEMS = coco.items(
    [
        {"key": f"k{i}", "kind": "change", "captions": [f"the {word} cube moved", f"a {word} cube"]}
        for i, word in enumerate(("red", "blue", "tiny", "dim"))
    ]
)
GOOD = {item.id: item.references[0] for item in ITEMS}
BAD = {**GOOD, "k0": "a dog", "k3": "the cube"}


def evaluated(folder: Path, captions: dict[str, str], items: list[coco.Item] = ITEMS) -> str:
    scores = evaluation.evaluate(items, captions, metrics.PLAIN)
    evaluation.write(folder / "evaluation", scores, items, captions)
    return str(folder)


def signed(items: list[coco.Item] = ITEMS, **options: str) -> signature.Signature:
    tokens = metrics.tokenised({item.id: item.references for item in items}, GOOD)[0]
    names = {item.id: item.name for item in items}
    return signature.of(tokens, names, metrics.PLAIN, **options)


def test_the_line_can_be_read_back() -> None:
    line = signed(protocol="spot-single@1").line
    assert line.startswith("pairs:4|refs:8-")
    assert "|CIDEr:D,n=4,sigma=6,df=refs|" in line
    assert "METEOR" not in line  # it was not computed
    parsed = signature.parse(line)
    assert parsed.line == line
    assert parsed.protocol == "spot-single"
    assert signed().protocol is None
    with pytest.raises(ValueError, match="no signature"):
        signature.parse("pairs:4|refs")


def test_the_line_is_what_papers_cite() -> None:
    """Keeps away: the same scores under another line, or others under the same.

    Whoever changes what the scorer makes of the same captions counts up SCORER, and this line.
    """
    assert signed().line.rpartition("|version:")[0] == (
        "pairs:4|refs:8-5c276688b229|subset:all|tok:ptb,lowercase,nopunct|BLEU:corpus,closest|"
        "ROUGE-L:beta=1.2|CIDEr:D,n=4,sigma=6,df=refs|protocol:none|scorer:1"
    )


def test_facts_are_part_of_the_line() -> None:
    """Keeps away: shares of right captions against the facts of two renderings, side by side.

    Whoever changes how captions are judged counts up READING, and this line.
    """
    red, blue = (solid(color, "cube", "metal", "small", (0.5, 0.5)) for color in ("red", "blue"))
    facts = [Facts("move", red, red, (red, blue)), Facts("move", blue, blue, (red, blue))]
    [one, two] = [signed_facts(dict.fromkeys(GOOD, each)) for each in facts]
    assert one.parts["facts"] == "4-9e3d0f0143ca,reading=2"
    assert one.differences(two) == ["facts"]
    plain = signed()
    assert "facts" not in plain.parts
    assert one.differences(plain) == []
    elsewhere = replace(red, location=(0.1, 0.1))  # a crop
    assert signed_facts(dict.fromkeys(GOOD, replace(facts[0], before=elsewhere))).line == one.line


def signed_facts(facts: dict[str, Facts]) -> signature.Signature:
    items = [replace(item, facts=facts[item.id]) for item in ITEMS]
    return evaluation.evaluate(items, GOOD, metrics.PLAIN).signature


def test_a_judge_stands_before_the_protocol() -> None:
    parts = list(signed(protocol="a@1").judged("seer,1").parts.items())
    at = parts.index(("judge", "seer,1"))
    assert parts[at + 1] == ("protocol", "a@1")
    assert dict(parts[:at] + parts[at + 1 :]) == signed(protocol="a@1").parts


def test_order_and_punctuation_change_nothing() -> None:
    """Keeps away: the same references, read from shards and from a file, that are called others."""
    same = [replace(i, references=tuple(f"{r}." for r in i.references[::-1])) for i in ITEMS[::-1]]
    assert signed(same).line == signed().line


@pytest.mark.parametrize("change", ["word", "id"])
def test_other_references_are_others(change: str) -> None:
    first = ITEMS[0]
    other = {
        "word": replace(first, references=("the red ball moved", first.references[1])),
        "id": replace(first, image_id="another.png"),
    }[change]
    assert signed().differences(signed([other, *ITEMS[1:]])) == ["refs"]


def test_what_makes_scores_not_comparable() -> None:
    plain = signed()
    for key, value in (("subset", "predicted"), ("version", "9.9"), ("protocol", "a@1")):
        assert plain.differences(signature.Signature({**plain.parts, key: value})) == []
    for key, value in (("scorer", "2"), ("tok", "none"), ("CIDEr", "plain")):
        assert plain.differences(signature.Signature({**plain.parts, key: value})) == [key]
    one, two = signed(protocol="a@1"), signed(protocol="a@2")
    assert one.differences(two) == ["protocol"]
    with_meteor = signature.Signature({**plain.parts, "METEOR": "1.5"})
    assert with_meteor.differences(plain) == plain.differences(with_meteor) == []


def test_compare_refuses_different_signatures(tmp_path: Path) -> None:
    """Keeps away: a table in which one system was scored on an easier half."""
    whole = evaluated(tmp_path / "whole", GOOD)
    half = evaluated(tmp_path / "half", {i.id: GOOD[i.id] for i in ITEMS[:2]}, ITEMS[:2])
    refused = cc_train("compare", whole, half)
    assert refused.returncode == 2
    assert refused.stderr.startswith(
        "cc-train: half is not scored as whole is: pairs 2 for 4, refs "
    )
    assert refused.stderr.count("\n") == 1
    mixed = cc_train("compare", whole, half, "--mixed")
    assert mixed.returncode == 0
    assert "note: different signatures: half is not scored as whole is" in mixed.stdout
    assert "note: gains are computed only between" in mixed.stdout


def test_no_gain_between_scores_on_other_references(tmp_path: Path) -> None:
    """Keeps away: an interval of a gain that the references of the same pairs make."""
    others = [replace(item, references=(item.references[0],)) for item in ITEMS]
    folders = [evaluated(tmp_path / "both", BAD), evaluated(tmp_path / "single", GOOD, others)]
    rows = [scored_rows.read(folder) for folder in folders]
    assert rows[0].items.keys() == rows[1].items.keys()
    assert side_by_side.intervals(rows) == []
    again = scored_rows.read(evaluated(tmp_path / "again", GOOD))
    [gain] = side_by_side.intervals([*rows, again])
    assert (gain.name, gain.other) == ("again", "both")


def test_compare_with_published_rows_names_the_protocol(tmp_path: Path) -> None:
    run = evaluated(tmp_path / "run", GOOD)
    refused = cc_train("compare", run, "--dataset", "spot")
    assert refused.returncode == 2
    assert "run: whether" in refused.stderr
    own = "--protocol spot-single, which data of your own cannot follow, or give --mixed"
    assert f"Evaluate it with {own}" in refused.stderr
    assert (
        "see --protocol spot-single"
        in cc_train("compare", run, "--dataset", "spot", "--mixed").stdout
    )
    file = tmp_path / "run/evaluation/scores.json"
    content = json.loads(file.read_text())
    content["signature"] = content["signature"].replace("protocol:none", "protocol:levir-cc@1")
    file.write_text(json.dumps(content))
    refused = cc_train("compare", run, "--dataset", "spot")
    assert refused.returncode == 2
    assert "scored by the protocol levir-cc, not by one of spot" in refused.stderr
    assert cc_train("compare", run, "--dataset", "levir").returncode == 0
    assert cc_train("compare").stderr.startswith("cc-train: nothing to compare.")


def test_several_runs_are_one_row(tmp_path: Path) -> None:
    runs = [evaluated(tmp_path / "s0", GOOD), evaluated(tmp_path / "s1", BAD)]
    row = several_runs.read(f"mine={runs[0]},{runs[1]}")
    single = [scored_rows.read(run).groups["total"]["CIDEr"] for run in runs]
    assert row.groups["total"]["CIDEr"] == pytest.approx(np.mean(single))
    assert row.spread["total"]["CIDEr"] == pytest.approx(np.std(single, ddof=1))
    shown = cc_train("compare", runs[1], f"mine={runs[0]},{runs[1]}", "--latex").stdout
    assert rf"mine & {row.groups['total']['BLEU-1']:.1f} $\pm$ " in shown.replace(r"\textbf{", "")
    [listed] = [
        one
        for one in json.loads(
            cc_train("compare", runs[1], f"mine={runs[0]},{runs[1]}", "--json").stdout
        )["groups"]["total"]
        if one["system"] == "mine"
    ]
    assert listed["runs"] == 2
    half = evaluated(tmp_path / "half", {i.id: GOOD[i.id] for i in ITEMS[:2]}, ITEMS[:2])
    with pytest.raises(UserError, match="half is not scored as s0 is"):
        several_runs.read(f"mine={runs[0]},{half}")
    with pytest.raises(UserError, match="no runs"):
        several_runs.read("mine=")


def test_the_signature_of_a_mean_has_what_its_runs_have_in_common(tmp_path: Path) -> None:
    """Keeps away: a mean that says it follows a protocol, or has a version and measures, which are
    those of its first run alone."""
    runs = [evaluated(tmp_path / name, GOOD) for name in ("s0", "s1")]
    file = tmp_path / "s0/evaluation/scores.json"
    scores = json.loads(file.read_text())
    line = signed(protocol="spot-single@1").line.rpartition("|version:")[0]
    scores["signature"] = line.replace("|CIDEr", "|METEOR:1.5|CIDEr") + "|version:0"
    file.write_text(json.dumps(scores))
    row = several_runs.read(f"mine={','.join(runs)}")
    version = signed().parts["version"]
    assert row.signature is not None
    assert row.signature.parts == {**signed().parts, "version": f"0+{version}"}
    [note] = [one for one in side_by_side.notes([row]) if "different signatures" in one]
    assert note.startswith("mine: its runs have different signatures")
    followed = signed(protocol="spot-single@1")
    assert signature.common([followed, followed]) == followed
    same = several_runs.read(f"mine={runs[1]},{runs[1]}")
    assert same.signature == signed()
    assert not any("different" in one for one in side_by_side.notes([same]))


def test_the_interval_over_runs_is_wider() -> None:
    """Against its variance in closed form: that of the pairs, and that of the runs of each side.

    Keeps away: seeds that are resampled as if they were pairs, or not at all.
    """
    rng = np.random.default_rng(5)
    count, runs, between = 400, 6, 3.0
    pairs = rng.normal(0, 2, count)
    sides = [
        [{str(i): float(v) for i, v in enumerate(part * pairs + shift)} for shift in shifts]
        for part, shifts in ((0, rng.normal(0, between, runs)), (1, rng.normal(1, between, runs)))
    ]
    difference, low, high = bootstrap.gain(*sides, np.random.default_rng(0))
    means = [np.array([np.mean(list(run.values())) for run in side]) for side in sides]
    assert difference == pytest.approx(means[1].mean() - means[0].mean())
    variance = pairs.var() / count + sum(m.var() / runs for m in means)
    assert (high - low) / (2 * 1.96) == pytest.approx(np.sqrt(variance), rel=0.06)


def test_latex_prints_names_as_they_stand() -> None:
    row = scored_rows.Row("a_b & 50%", {"total": {"CIDEr": 12.34}})
    text = latex.render(side_by_side.tables([row]), ["a note"])
    assert text.startswith("% a note\n\\begin{table}")
    assert r"a\_b \& 50\% & \textbf{12.3} &  \\" in text
