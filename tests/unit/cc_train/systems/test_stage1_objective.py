"""Stage 1's losses: which samples count, what each sum is divided by, and passes one by one."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console

from cc_prep.errors import JobFailed
from cc_prep.formats.tar import DamagedShard
from cc_prep.models.vqgan import VQGAN
from cc_prep.models.vqgan import Config as Codec
from cc_train.distributed import Ranks
from cc_train.evaluation.unreadable import Unreadable
from cc_train.systems.procap import stage1_objective as stage1
from cc_train.systems.procap.frame_features import FrameFeatures, as_input
from cc_train.systems.procap.procedure_encoder import REL, Config, ProcedureEncoder
from cc_train.systems.procap.stage1 import HeldOut
from cc_train.systems.procap.stage1_objective import (
    VARIANTS,
    Batch,
    Losses,
    Stage1Objective,
    denominators,
    sums,
)

SIZES = Config(
    width=64, layers=2, latent=8, frames=3, rows=2, columns=2, text_length=6, text_vocabulary=20,
    codes=16,
)  # fmt: skip
APART = torch.tensor([1.0, 0.0, 1.0])


@pytest.fixture
def encoder() -> ProcedureEncoder:
    torch.manual_seed(0)
    return ProcedureEncoder(SIZES).eval()


def batch() -> Batch:
    """Three samples, of the last of which nothing is seen."""
    generator = torch.Generator().manual_seed(1)
    frames = torch.randn(2, 3, 3, 4, 8, generator=generator)
    keep = torch.rand(3, 12, generator=generator) < 0.4
    keep[0, 0], keep[1, 0], keep[2] = True, True, False
    return Batch(
        text=torch.randint(1, 20, (3, 6), generator=generator),
        frames=torch.cat(tuple(frames), dim=1),
        damaged=torch.tensor([[0, 3, 2], [5, 0, 1], [2, 4, 1]]),
        tokens=torch.randint(0, 16, (3, 12), generator=generator),
        visible=keep,
        negative_index=torch.tensor([1, 0, 0]),
        negative_is_valid=APART,
    )


@pytest.mark.parametrize("name", [*stage1.NAMES, "local"])
def test_no_weight_is_below_0(name: str) -> None:
    others = dict.fromkeys((*stage1.NAMES, "local"), 1.0)
    assert getattr(Losses(**{**others, name: 0.0}), name) == 0
    with pytest.raises(ValueError, match=name):
        Losses(**{**others, name: -0.5})


@pytest.mark.parametrize(
    ("settings", "align", "consistency"),
    [
        (Losses(), [1, 0, 0], [1, 1, 0]),
        (Losses(ignore_fully_masked=False), [1, 0, 1], [1, 1, 1]),
        (Losses(reference_quirks=True), [1, 1, 0], [1, 1, 0]),
    ],
    ids=["ours", "fully masked ones, too", "the reference's"],
)
def test_who_counts(settings: Losses, align: list[int], consistency: list[int]) -> None:
    """Keeps away: a wrong caption that is true, or a sample of which nothing is seen, in a loss."""
    counts = denominators(batch().visible, batch().negative_is_valid, settings)
    assert counts["align"] == sum(align)
    assert counts["consistency"] == sum(consistency)
    assert counts["msm"] == (~batch().visible).sum()


@pytest.mark.parametrize("ignored", [True, False])
@torch.inference_mode()
def test_each_loss_term_by_term(encoder: ProcedureEncoder, ignored: bool) -> None:
    """Keeps away: a sign, a head or a sample that is swapped in a case that no vector covers."""
    one, settings = batch(), Losses(ignore_fully_masked=ignored)
    control = encoder.control(one.text)
    words = control.shape[1]
    true = encoder(control, encoder.frames(one.frames[:, :3], one.visible))
    other = encoder(control[one.negative_index], encoder.frames(one.frames[:, :3], one.visible))
    damaged = torch.stack([one.frames[i, one.damaged[i]] for i in range(3)])
    shuffled = encoder(control, encoder.frames(damaged, one.visible))
    align, consistency = 0.0, 0.0
    for i in range(3):
        if ignored and not one.visible[i].any():
            continue
        right, wrong = (encoder.to_logits_rel(x[i, REL])[0] for x in (true, other))
        term = F.binary_cross_entropy_with_logits
        align += float(APART[i] * (term(right, torch.tensor(1.0)) + term(wrong, torch.tensor(0.0))))
        right, wrong = (encoder.to_logits_vid(x[i, words - 1])[0] for x in (true, shuffled))
        consistency += float(term(right, torch.tensor(1.0)) + term(wrong, torch.tensor(0.0)))
    logits = encoder.to_logits(true[:, words:])
    msm = F.cross_entropy(logits[~one.visible], one.tokens[~one.visible], reduction="sum")
    losses = {name: value.item() for name, value in sums(encoder, one, settings).items()}
    expected = {"align": align, "consistency": consistency, "msm": msm.item()}
    assert losses == pytest.approx(expected, rel=1e-4)


def test_align_reads_differences_of_the_ends_where_it_is_asked_to() -> None:
    """Keeps away: ends of another frame or variant, and a checkpoint that forgets the choice."""
    torch.manual_seed(0)
    network = ProcedureEncoder(SIZES.model_copy(update={"compare_ends": True})).eval()
    one = batch()
    with torch.inference_mode():
        losses = sums(network, one, Losses())
        control = network.control(one.text)
        words = control.shape[1]
        logits = []
        for texts in (control, control[one.negative_index]):
            states = network(texts, network.frames(one.sequence, one.visible))
            change = states[:, -4:] - states[:, words : words + 4]
            text = network.rel_text(states[:, 1 : words - 2].mean(1))
            both = text * network.rel_change(change.amax(1))
            read = torch.cat((states[:, REL], change.amax(1), both), dim=1)
            logits.append(network.to_logits_rel(read)[:, 0])
    counts = APART * torch.tensor([1.0, 1.0, 0.0])
    expected = ((F.softplus(-logits[0]) + F.softplus(logits[1])) * counts).sum()
    assert losses["align"].item() == pytest.approx(expected.item(), rel=1e-4)
    shapes = {name: tuple(t.shape) for name, t in network.state_dict().items()}
    assert Config.of(shapes) == network.config


def objective(encoder: ProcedureEncoder, **more: object) -> Stage1Objective:
    codec = VQGAN(Codec(channels=32, multipliers=(1, 1), latent=8, codes=16, code_width=8))
    features = FrameFeatures(codec.eval(), "pixels")
    return Stage1Objective(
        encoder,
        features,
        settings=Losses(),
        held_out=more.get("held_out", ()),
        weight_decay=0.1,
        device="cpu",
    )


def raw() -> dict[str, torch.Tensor]:
    """A batch of the stream, of cropped images: so it has no tokens."""
    generator = torch.Generator().manual_seed(2)
    images = torch.randint(0, 256, (2, 2, 3, 4, 4, 3), dtype=torch.uint8, generator=generator)
    return {
        "text": torch.randint(1, 20, (2, 6), generator=generator),
        "frames": images[0],
        "altered": images[1][:, :1],
        "damaged_order": torch.tensor([[0, 3, 2], [2, 0, 1]]),
        "visible": torch.rand(2, 3 * 4, generator=generator) < 0.5,
        "negative_index": torch.tensor([1, 0]),
        "negative_is_valid": torch.tensor([True, True]),
        "mask": torch.tensor([0, 2]),
        "changed": torch.tensor([True, False]),
    }


def test_passes_go_together_up_to_the_limit(encoder: ProcedureEncoder) -> None:
    """Keeps away: a limit that counts other units, so that memory runs out or time is lost."""
    task, one = objective(encoder), raw()
    megabytes = 3 * one["visible"].numel() * SIZES.width * SIZES.layers * stage1.KEPT * 4 / 1e6
    task.max_activation_mb = megabytes  # type: ignore[assignment]
    assert len(task.chunks(one)) == 1
    task.max_activation_mb = megabytes * 0.999  # type: ignore[assignment]
    assert len(task.chunks(one)) == 3


def seen(task: Stage1Objective, one: dict[str, torch.Tensor]) -> Batch:
    return stage1._batch(task._seen(one, stage1.VARIANTS))


def test_cropped_frames_get_their_own_tokens(encoder: ProcedureEncoder) -> None:
    """Keeps away: targets of the whole frame, or of another shape, for a part of it."""
    task, one = objective(encoder), raw()
    tokens = seen(task, one).tokens
    assert tokens.shape == one["visible"].shape
    assert torch.equal(tokens, task.features.indices(as_input(one["frames"])).reshape(2, -1))
    denominators = task.denominators(one)
    assert denominators["msm"] == (~one["visible"]).sum()


def test_images_come_in_from_0_to_1() -> None:
    image = torch.tensor([0, 51, 255], dtype=torch.uint8).expand(1, 2, 4, 5, 3)
    pixels = as_input(image)
    assert pixels.shape == (1, 2, 3, 4, 5)
    assert torch.allclose(pixels[0, 0, :, 0, 0], torch.tensor([0.0, 0.2, 1.0]))
    assert as_input(torch.tensor([[[3]]], dtype=torch.int16)).dtype == torch.int64


@torch.inference_mode()
def test_validation_divides_by_what_all_batches_count(encoder: ProcedureEncoder) -> None:
    """Keeps away: a mean of means, which weighs a short last batch as much as a full one."""
    first = raw()
    short = {name: value[:1] for name, value in raw().items()}
    short["negative_index"] = torch.tensor([0])
    task = objective(encoder, held_out=(first, short))
    measures, _ = task.validate(encoder)
    batches = [seen(task, part) for part in (first, short)]
    for name in stage1.NAMES:
        total = sum(float(sums(encoder, b, task.settings)[name]) for b in batches)
        counts = [denominators(b.visible, b.negative_is_valid, task.settings) for b in batches]
        number = sum(float(count[name]) for count in counts)
        assert measures[name] == pytest.approx(total / number, rel=1e-5)
    right, masked = torch.zeros(3), torch.zeros(3)
    for one, rows in zip(batches, ([0, 1], [2]), strict=True):
        guessed = stage1.predict(encoder, one)
        right[rows] = ((guessed == one.tokens) & ~one.visible).sum(1).float()
        masked[rows] = (~one.visible).sum(1).float()
    assert measures["accuracy"] == pytest.approx(float(right.sum() / masked.sum()))
    # The first and the third sample have random masks and changed.
    for group, rows in {
        "random": [0, 2],
        "box_masked": [1],
        "changed": [0, 2],
        "unchanged": [1],
    }.items():
        expected = float(right[rows].sum() / masked[rows].sum())
        assert measures[f"accuracy_{group}"] == pytest.approx(expected), group
    assert "accuracy_full" not in measures, "there is none"


@torch.inference_mode()
def test_binary_decisions_are_counted_by_their_signs(encoder: ProcedureEncoder) -> None:
    """Both decisions of each sample that counts, the true input's and the false one's."""
    one, settings = batch(), Losses()
    hidden = stage1.hidden_states(encoder, one, settings)
    words = encoder.control(one.text).shape[1]
    heads = {
        "align": (encoder.to_logits_rel, REL),
        "consistency": (encoder.to_logits_vid, words - 1),
    }
    counted = {"align": [1, 0, 0], "consistency": [1, 1, 0]}
    for name, (head, place) in heads.items():
        head[-1].bias.fill_(100.0)  # all is taken for true, so the false one is wrong
        right, count = stage1.right_of(encoder, one, settings, hidden)[f"{name}_accuracy"]
        assert right.tolist() == counted[name]
        assert count.tolist() == [2 * number for number in counted[name]]
        head[-1].bias.fill_(0.0)
        right, _ = stage1.right_of(encoder, one, settings, hidden)[f"{name}_accuracy"]
        true, false = head(hidden["true"][0, place]) > 0, head(hidden[name][0, 0]) < 0
        assert right[0] == float(true) + float(false)


def test_the_total_is_weighed(encoder: ProcedureEncoder) -> None:
    task, one = objective(encoder), raw()
    [chunk] = task.chunks(one)
    losses = task.losses("model", chunk, 0, {name: torch.tensor(2.0) for name in stage1.NAMES})
    expected = sum(getattr(task.settings, name) * losses[name] for name in stage1.NAMES)
    assert losses["total"].item() == pytest.approx(float(expected), rel=1e-5)
    whole = sums(encoder, seen(task, one), task.settings)
    assert losses["msm"].item() == pytest.approx(whole["msm"].item() / 2, rel=1e-5)


@torch.inference_mode()
def test_local_consistency_by_hand() -> None:
    """Keeps away: ends that are swapped, or states that see the caption or frames in between."""
    torch.manual_seed(0)
    network = ProcedureEncoder(SIZES.model_copy(update={"local": True})).eval()
    ends, kinds = torch.randn(2, 2, 4, 8), torch.tensor([[0, 1, 0, 4], [0, 0, 3, 0]])
    frames = torch.zeros(2, 3, 4, 8)
    frames[:, [0, 2]] = ends
    visible = torch.ones(3, 4, dtype=torch.bool)
    visible[1] = False
    control = network.control(torch.zeros(2, 6, dtype=torch.long), related=False)
    states = network(control, network.frames(frames, visible.flatten().expand(2, -1)))[:, -12:]
    logits = network.to_logits_local(torch.cat((states[:, :4], states[:, 8:]), dim=-1))
    expected = F.cross_entropy(logits.flatten(0, 1), kinds.flatten(), reduction="sum")
    loss, told, changed = stage1.local_loss(network, ends, kinds)
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    right = (logits.argmax(-1) == kinds) & (kinds > 0)
    assert (int(told), int(changed)) == (int(right.sum()), 3)
    assert Config.of({n: tuple(t.shape) for n, t in network.state_dict().items()}).local


def test_the_best_checkpoint_is_the_one_with_the_lowest_loss() -> None:
    """Keeps away: stage 2 that starts from the worst checkpoint of stage 1."""
    assert Stage1Objective.criterion == ("msm", False, None)


@pytest.mark.parametrize("name", ["align", "consistency"])
def test_the_heads_losses_are_in_float32(encoder: ProcedureEncoder, name: str) -> None:
    """Keeps away: terms near log 2 rounded to 0.6914 or 0.6953, in which no progress shows."""
    one, states = batch(), torch.randn(3, SIZES.width).bfloat16()
    plain = stage1.binary_loss(encoder, one, Losses(), name, states.float(), 1)
    with torch.autocast("cpu", torch.bfloat16):
        half = stage1.binary_loss(encoder, one, Losses(), name, states, 1)
    assert half.dtype == torch.float32
    assert torch.equal(half, plain)


PASS_SIZES = Config(
    width=64, layers=2, latent=8, frames=3, rows=2, columns=2, text_length=6, text_vocabulary=20
)


@pytest.fixture
def double_encoder() -> ProcedureEncoder:
    torch.manual_seed(0)
    return ProcedureEncoder(PASS_SIZES).double()


def double_batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    frames = torch.randn(2, 2, 3, 4, 8, dtype=torch.float64, generator=generator)
    return Batch(
        text=torch.randint(1, 20, (2, 6), generator=generator),
        frames=torch.cat(tuple(frames), dim=1),
        damaged=torch.arange(3, 6).expand(len(frames[0]), -1),
        tokens=torch.randint(0, PASS_SIZES.codes, (2, 12), generator=generator),
        visible=torch.rand(2, 12, generator=generator) < 0.4,
        negative_index=torch.tensor([1, 0]),
        negative_is_valid=torch.tensor([1.0, 0.0]),
    )


@pytest.mark.parametrize(
    "weights", [{}, {"align": 0.0}, {"consistency": 0.0}, {"reference_quirks": 1}]
)
def test_passes_one_by_one_add_up(
    double_encoder: ProcedureEncoder, weights: dict[str, float]
) -> None:
    settings = Losses(**{n: bool(w) if n == "reference_quirks" else w for n, w in weights.items()})
    whole = sums(double_encoder, double_batch(), settings)
    torch.stack(list(whole.values())).sum().backward()
    expected = {name: p.grad for name, p in double_encoder.named_parameters()}
    assert expected["transformer.resblocks.0.attn.in_proj_weight"] is not None
    double_encoder.zero_grad()
    totals: dict[str, float] = {}
    for name in VARIANTS:
        if name not in whole and name != "true":
            continue
        part = sums(double_encoder, double_batch(), settings, [name])
        torch.stack(list(part.values())).sum().backward()
        for loss, value in part.items():
            totals[loss] = totals.get(loss, 0.0) + value.item()
    assert totals == pytest.approx({name: value.item() for name, value in whole.items()})
    for name, p in double_encoder.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], msg=name)


def test_large_passes_go_one_by_one_on_a_processor_and_the_one_with_all_heads_last(
    double_encoder: ProcedureEncoder,
) -> None:
    features = FrameFeatures(VQGAN(Codec(channels=32, latent=8, code_width=8)), "tokens")
    raw = {"visible": double_batch().visible}
    for weights, expected in (
        (Losses(), ("align", "consistency", "true")),
        (Losses(align=0), ("consistency", "true")),
        (Losses(align=0, consistency=0), ("true",)),
    ):
        for most, chunks in ((1000, [expected]), (0, [(name,) for name in expected])):
            objective = Stage1Objective(
                double_encoder, features, settings=weights, held_out=(), weight_decay=0.0,
                device="cpu", max_activation_mb=most,
            )  # fmt: skip
            assert objective.division(raw["visible"]) == chunks


def test_wrong_ones_of_a_validation_are_of_another_scene() -> None:
    """Keeps away: a validation of another task than that of the training."""

    class Entry:
        def __init__(self, scene: str) -> None:
            self.scene = scene

        def read(self) -> str:
            return self.scene

    entries: Any = [Entry(scene) for scene in "aabb"]
    maker: Any = lambda samples, rngs, negative_index: negative_index  # noqa: E731
    (partner,) = HeldOut(entries, maker)
    assert partner.tolist() == [2, 3, 0, 1]
    # With whole scenes as items the training takes a sample's neighbour, too.
    assert list(HeldOut(entries, maker, pair_scenes=True)) == [None]


def test_a_damaged_image_to_validate_on_is_told_in_a_line() -> None:
    """Keeps away: a traceback at the first validation, 5,000 steps after the start."""

    class Entry:
        scene = "d-val-1"

        def read(self) -> str:
            return "a sample"

    def make(samples: Any, rngs: Any, negative_index: Any) -> Any:
        raise DamagedShard("k: no image of frame 0")

    entries: Any = [Entry()]
    maker: Any = make
    with pytest.raises(JobFailed, match="k: no image of frame 0: check the shards"):
        list(HeldOut(entries, maker))


def test_unreadable_samples_to_validate_on_are_counted() -> None:
    """Keeps away: figures of fewer samples than the log says, without a word."""

    class Entry:
        key, scene = "d-val-2-change", "d-val-2"

        def read(self) -> str:
            raise DamagedShard("cut short")

    class Whole(Entry):
        def read(self) -> str:
            return "a sample"

    entries: Any = [Entry(), Whole()]
    maker: Any = lambda samples, rngs, negative_index: {"count": len(samples)}  # noqa: E731
    screen = io.StringIO()
    unreadable = Unreadable(2, 0.5, Ranks(), Console(file=screen, soft_wrap=True))
    assert list(HeldOut(entries, maker, unreadable=unreadable)) == [{"count": 1}]
    assert screen.getvalue().startswith("1 of 2 samples to validate on cannot be read")
    unreadable.skip_bad = 0.1
    with pytest.raises(JobFailed, match=r"the last is d-val-2-change: .*raise stream.skip_bad"):
        list(HeldOut(entries, maker, unreadable=unreadable))
