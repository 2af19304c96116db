"""Commands of `cc-train` that caption: caption, imagine, serve."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cc_prep.errors import JobFailed, UserError
from cc_prep.terminal import echo
from cc_train.cli.options import (
    beams_option,
    chat_captioner,
    decode_option,
    device_option,
    server_options,
    shards_option,
)

if TYPE_CHECKING:
    from cc_prep.manifest import ImageValues
    from cc_train.baselines.captioner import ChatCaptioner
    from cc_train.captioner import Caption, CaptionModel
    from cc_train.pretrained import Captioner


@click.command()
@click.argument("paths", nargs=-1, metavar="[RUN] [BEFORE AFTER]")
@click.option(
    "--pairs", metavar="FILE|DIR", help="A CSV or JSON-lines list, or a folder: see above."
)
@shards_option("Training shards whose samples are captioned, with their references")
@click.option(
    "--limit", type=click.IntRange(1), help="With --shards: caption at most this many samples."
)
@beams_option
@decode_option
@device_option
@server_options
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per pair, with all beams."
)
@click.option(
    "--bands",
    metavar="R,G,B",
    callback=lambda _, __, text: _numbers(text, int),
    help="The bands that are read as red, green and blue, counted from 1, or one for grey.",
)
@click.option(
    "--scale",
    default="dtype",
    show_default=True,
    metavar="dtype|LOW,HIGH|percentile|per_band",
    callback=lambda _, __, text: _numbers(text, float) if "," in text else text,
    help="What is black and white in images of more than 8 bits.",
)
@click.option(
    "--register",
    type=click.Choice(["none", "translation", "affine", "homography"]),
    default="none",
    show_default=True,
    help="Move the image after onto the one before, where they do not lie on each other.",
)
@click.option("--resize", is_flag=True, help="Resize the larger of two images to the smaller.")
@click.option(
    "--tile",
    metavar="PX",
    type=click.IntRange(16),
    help="For two large rasters: caption tiles of this side, and print those that changed.",
)
@click.option(
    "--overlap",
    metavar="PX",
    type=click.IntRange(0),
    help="With --tile: px that neighbouring tiles share [default: an eighth of --tile].",
)
@click.option(
    "--geojson",
    metavar="FILE",
    help="With --tile: write the changed places as polygons in the rasters' reference system.",
)
@click.option(
    "--mask",
    metavar="FILE",
    help="For one pair: write the predicted mask as a PNG of class ids.",
)
@click.option(
    "--overlay", metavar="FILE", help="For one pair: write both images with the mask over them."
)
def caption(
    *,
    paths: tuple[str, ...],
    pairs: str | None,
    shards: tuple[str, ...],
    limit: int | None,
    beams: int,
    decode: str,
    device: str,
    url: str | None,
    model: str | None,
    prompt: str | None,
    key_variable: str | None,
    overrides: tuple[str, ...],
    no_probe: bool,
    as_json: bool,
    bands: tuple[int, ...] | None,
    scale: str | tuple[float, float],
    register: str,
    resize: bool,
    tile: int | None,
    overlap: int | None,
    geojson: str | None,
    mask: str | None,
    overlay: str | None,
) -> None:
    """Prints what changed from BEFORE to AFTER, as a sentence.

    RUN is the folder of a training or of an exported captioner. Without RUN, captioner-mini is
    used, which comes with the package. A calibrated captioner adds the probability that its
    sentence is right; it is known for greedy sentences alone, so not with --beams above 1. Below
    5 % the sentence is "not sure: …" with the reason, and --json keeps the captioner's own. So it
    is where --register leaves more than a quarter of the image before without a counterpart.

    --pairs captions many pairs: a list with columns `before` and `after` (paths relative to the
    list), a folder with `before/NAME` and `after/NAME`, or one with `NAME_before.*` and
    `NAME_after.*`. For a pair without readable images, the error is printed on standard error (with
    --json also a record in its place), and the exit code is 1.

    --tile captions large rasters, of which it reads one tile at a time: a GeoTIFF after is
    reprojected to the pixels of that before. A run with --geojson that was ended goes on where it
    was. Needs the extra [geo].

    --url asks a multi-modal LLM of a server, OpenAI-compatible or Ollama, which gets both images.

    \b
    Examples:
      cc-train caption before.png after.png
      cc-train caption --url http://localhost:8000/v1 --model some-vl-model before.png after.png
      cc-train caption out/clevr/stage2 --shards 'out/clevr/shards/test-*.tar' --limit 3
      cc-train caption out/pairs/chain before.png after.png --mask mask.png --overlay seen.jpg
      cc-train caption out/mine/captioner 2024.tif 2026.tif --bands 4,3,2 --scale percentile
      cc-train caption out/mine/captioner 2024.tif 2026.tif --tile 256 --geojson changes.geojson
    """
    from cc_train import doubt, loading
    from cc_train.data.image_pairs import Reading
    from cc_train.data.pair_lists import read_pairs
    from cc_train.decoding import consensus
    from cc_train.pretrained import Captioner
    from cc_train.report import overlays
    from cc_train.training.settings import pick_device

    run, images = _run_and_images(paths)
    if images is None and (mask is not None or overlay is not None):
        raise UserError("--mask and --overlay are of one pair", "Give BEFORE and AFTER")
    overlays.check_names(mask, overlay)
    if tile is None and (overlap is not None or geojson is not None):
        raise UserError("--overlap and --geojson without --tile", "Give --tile too")
    if tile is not None and (shards or pairs is not None):
        raise UserError("--tile is of one pair", "Give BEFORE and AFTER")
    agree = decode == "consensus"
    if agree:
        consensus.require_beams(beams)
        if tile is not None:
            raise UserError("--decode consensus with --tile", "Leave one of them out")
    given: dict[str, Any] = {
        "bands": bands, "scale": scale, "register": register, "resize": resize,
    }  # fmt: skip
    reading = Reading.of(**given)
    chat = chat_captioner(url, model, prompt, key_variable, overrides, no_probe)
    if chat is not None:
        drawn = mask is not None or overlay is not None
        one_run = len(paths) in (1, 3) or shards or beams > 1 or device != "auto"
        if one_run or drawn or tile is not None:
            what = "RUN, --shards, --beams, --device, --tile, --mask and --overlay"
            raise UserError(f"{what} are not of --url", "Leave them out with --url")
    if shards:
        if images or pairs is not None:
            raise UserError("--shards and other pairs are both given", "Give one of them")
        if reading != Reading():
            what = "--bands, --scale, --register and --resize are of images"
            raise UserError(what, "Leave them out with --shards")
        network = loading.load(run, pick_device(device))
        network = consensus.Consensus(network) if agree else network
        _caption_samples(network, shards, limit, beams, as_json)
        return
    if limit is not None:
        raise UserError("--limit without --shards", "Give --shards too")
    if pairs is not None:
        if images:
            raise UserError("images and --pairs are both given", "Give one of them")
        listed = list(read_pairs(Path(pairs)))
        captioner: Captioner | ChatCaptioner
        if chat is not None:
            captioner = chat
        else:
            captioner = Captioner.from_pretrained(run, device=device)
            if agree:
                captioner.model = consensus.Consensus(captioner.model)
        _caption_listed(captioner, listed, given, beams, as_json)
        return
    if images is None:
        raise UserError("no images given", "Give BEFORE and AFTER, or --pairs")
    if tile is not None:
        if mask is not None or overlay is not None:
            raise UserError("--mask and --overlay are of one image", "Leave them out with --tile")
        if register != "none" or resize:
            what = "--register and --resize are of two images, and rasters lie where they say"
            raise UserError(what, "Leave them out with --tile")
        cut = (tile, tile // 8 if overlap is None else overlap)
        _caption_scene(run, device, images, reading.image, cut, geojson, beams, as_json)
        return
    if chat is not None:
        said = chat(*images, **given)
        _say_missing(said)
        echo(_json_line(*images, said) if as_json else _text(said))
        return
    captioner = Captioner.from_pretrained(run, device=device)
    captioner.model = consensus.Consensus(captioner.model) if agree else captioner.model
    one = captioner(*images, beams=beams, **given)
    _say_missing(one)
    if one.text == doubt.NOT_SURE + doubt.UNLIKE:
        say_other_captioner(captioner.folder)
    if mask is not None or overlay is not None:
        overlays.write(one, images, mask, overlay, reading)
    if as_json:
        echo(_json_line(*images, one, captioner.inputs.mask_classes))
    else:
        echo(_text(one))


def _caption_scene(
    run: str,
    device: str,
    rasters: tuple[str, str],
    values: ImageValues,
    cut: tuple[int, int],
    geojson: str | None,
    beams: int,
    as_json: bool,
) -> None:
    """Prints the changed tiles of two large rasters, or writes them as GeoJSON.

    Args:
        cut: The side of a tile and the overlap of neighbours, in px.
    """
    from cc_prep import extras
    from cc_prep.errors import RejectedPair
    from cc_prep.media.scenes import Scene, tiles
    from cc_prep.progress import progress_bar
    from cc_prep.storage import outputs
    from cc_train import scene_captions
    from cc_train.pretrained import Captioner

    extras.require("rasterio", "--tile", "geo")
    side, overlap = cut
    if overlap > side // 2:
        raise UserError(f"--overlap {overlap} of --tile {side}", "Give at most half of the tile")
    if geojson is not None:
        outputs.check_file(geojson, "--geojson")
    try:
        scene = Scene(*rasters, values)
    except RejectedPair as error:
        raise UserError(error.detail, error.remedy) from None
    captioner = Captioner.from_pretrained(run, device=device)
    if geojson is not None:
        with progress_bar("tiles") as progress:
            changed, of = scene_captions.write_geojson(
                captioner, scene, geojson, side=side, overlap=overlap, beams=beams, row=_tile_row,
                progress=progress,
            )  # fmt: skip
        echo(f"{geojson}: {changed:,} of {of:,} tiles changed")
        return
    parts = tiles(scene.grid.width, scene.grid.height, side, overlap)
    for found in scene_captions.captions_of(captioner, scene, parts, beams):
        for one in found:
            box = list(one.tile.box)
            if as_json:
                polygons = {} if one.mask is None else {"polygons": one.polygons}
                row = {"box": box, **_tile_row(one.caption), **polygons}
                echo(json.dumps(row, ensure_ascii=False))
            else:
                echo(f"{','.join(map(str, box))}\t{_text(one.caption)}")


def _numbers(text: str | None, kind: type[int | float]) -> tuple[int | float, ...] | None:
    """Numbers with commas between them, of an option."""
    try:
        return None if text is None else tuple(map(kind, text.strip("[]").split(",")))
    except ValueError:
        raise click.BadParameter(f"{text!r} are no numbers with commas between them") from None


def _caption_listed(
    captioner: Captioner | ChatCaptioner,
    listed: Sequence[tuple[str, str]],
    reading: dict[str, Any],
    beams: int,
    as_json: bool,
) -> None:
    """Prints a sentence for each pair of a list. A pair without readable images has its error on
    standard error, and with `as_json` a record too; raises JobFailed for such pairs at the end.

    Args:
        reading: Arguments of `Captioner`, by which images are read.
    """
    from cc_train import doubt
    from cc_train.captioner import Caption
    from cc_train.evaluation.predict import BATCH
    from cc_train.pretrained import Captioner

    # What a server answered is printed at once: it may be paid for, and the next may fail.
    size: int = 1
    classes: Sequence[str] = ()
    if isinstance(captioner, Captioner):
        size, classes = BATCH, captioner.inputs.mask_classes
    failed = 0
    is_unlike = False
    for first in range(0, len(listed), size):
        part = listed[first : first + size]
        outcomes = captioner.caption_each(part, beams=beams, **reading)
        for number, (pair, one) in enumerate(zip(part, outcomes, strict=True), first + 1):
            if isinstance(one, Caption):
                is_unlike |= one.text == doubt.NOT_SURE + doubt.UNLIKE
                _say_missing(one, f"pair {number}: ")
                line = f"{pair[0]}\t{pair[1]}\t{_text(one)}"
                echo(_json_line(*pair, one, classes) if as_json else line)
                continue
            failed += 1
            echo(f"pair {number}: {one}", err=True)
            if as_json:
                row = {"before": pair[0], "after": pair[1], "error": str(one)}
                echo(json.dumps(row, ensure_ascii=False))
    if is_unlike and isinstance(captioner, Captioner):
        say_other_captioner(captioner.folder)
    if failed:
        raise JobFailed(f"{failed} of {len(listed)} pairs have no caption")


def _say_missing(caption: Caption, whose: str = "") -> None:
    """Says how much of a registered pair is not compared, unless the caption is that it is."""
    from cc_train import doubt

    if caption.compared is not None and doubt.MIN_COMPARED <= caption.compared < 1:
        echo(f"{whose}{doubt.missing(caption.compared)}", err=True)


def say_other_captioner(folder: Path) -> None:
    """Names photos-mini where the captioner of a folder knows rendered scenes alone."""
    from cc_train.runs import run_folder

    for name in run_folder.OF_RENDERED_SCENES:
        if folder == run_folder.locate(name):
            what = f"{name} knows rendered scenes alone"
            echo(f"{what}. For photographs: cc-train caption photos-mini", err=True)


def _run_and_images(paths: tuple[str, ...]) -> tuple[str, tuple[str, str] | None]:
    """The captioner and the two images that `[RUN] [BEFORE AFTER]` name. Raises UserError."""
    from cc_train.runs import run_folder

    if len(paths) > 3:
        raise UserError(f"{len(paths)} paths given", "Give RUN, BEFORE and AFTER, or --pairs")
    ends = {Path(path).suffix.lower() for path in paths}
    are_images = len(ends) == 1 and ends != {""}
    if (len(paths) == 2 and _names_a_captioner(paths[0]) and not are_images) or (
        len(paths) == 1 and Path(paths[0]).is_file()
    ):
        raise UserError("only one image is given", "Give RUN, BEFORE and AFTER, or --pairs")
    run = run_folder.SHIPPED if len(paths) in (0, 2) else paths[0]
    return run, (paths[-2], paths[-1]) if len(paths) > 1 else None


def _names_a_captioner(path: str) -> bool:
    """Whether `path` is no image: a folder, a captioner of the package, or an id on the hub."""
    from cc_prep.media.images import ENDINGS
    from cc_train.runs import run_folder
    from cc_train.sharing import hub

    may_be_id = hub.is_id(path) and not path.lower().endswith(ENDINGS)
    return Path(path).is_dir() or run_folder.is_shipped(path) or may_be_id


def _caption_samples(
    captioner: CaptionModel, shards: tuple[str, ...], limit: int | None, beams: int, as_json: bool
) -> None:
    """Prints the captions of samples of training shards, each beside its references."""
    from cc_prep.console import on_stderr
    from cc_prep.formats import coco as reference_files
    from cc_train.caption_rows import row
    from cc_train.data import shard_index
    from cc_train.evaluation.predict import check, predict

    entries = shard_index.read(shards)[:limit]
    by_key = {entry.key: entry for entry in entries}
    check(entries, captioner.inputs, on_stderr())
    for sample, one in predict(captioner, entries, beams):
        references = list(by_key[sample.key].captions)
        if as_json:
            entry = by_key[sample.key]
            names = reference_files.own_names(entry.image_id or entry.key, entry.meta())
            said = row(one, captioner.inputs.mask_classes)
            value = {"key": sample.key, **names, **said, "references": references}
            echo(json.dumps(value, ensure_ascii=False))
            continue
        echo(f"{sample.key}: {_text(one)}")
        for reference in references:
            echo(f"    reference: {reference}")


def _json_line(before: str, after: str, caption: Caption, classes: Sequence[str] = ()) -> str:
    """A caption and its images as JSON; `classes` are the names of those of its mask."""
    from cc_train.caption_rows import row

    said = row(caption, classes)
    return json.dumps({"before": before, "after": after, **said}, ensure_ascii=False)


def _tile_row(caption: Caption) -> dict[str, Any]:
    """What is said of a tile: its polygons are the places of its mask."""
    from cc_train.caption_rows import row

    return row(replace(caption, mask=None))


def _text(caption: Caption) -> str:
    """The sentence, and behind a tab its confidence where the captioner is calibrated."""
    if caption.confidence is None:
        return caption.text
    # 100 % would be certainty, which no calibration gives.
    return f"{caption.text}\t{min(99, round(100 * caption.confidence))} %"


@click.command()
@click.argument("run")
@click.argument("before")
@click.argument("after")
@click.option(
    "--out",
    metavar="FILE",
    required=True,
    help="The picture that is written: .png, .jpg or .webp.",
)
@click.option(
    "--stage1", metavar="RUN", help="Add a second row: the frames that this stage 1 imagines."
)
@click.option(
    "--truth",
    metavar="FRAME",
    multiple=True,
    help="Add a last row: what was there in between, once for each imagined frame.",
)
@device_option
def imagine(**options: Any) -> None:
    """Draws the frames that RUN imagines between two images.

    RUN is a captioner of stage 2. From left to right: the image before; the same image decoded from
    its tokens, which is the best that the VQGAN can draw; the imagined frames, decoded from the
    states of the procedure queries by stage 1's head and the VQGAN; the image after, decoded from
    its tokens; the image after. Where stage 2 trained the encoder further, its frames can differ
    from those of stage 1: --stage1 adds a row with the latter, for the same images and RUN's
    sentence. `cc-prep synth --truth` renders what --truth takes.

    \b
    Example:
      cc-train imagine procap-mini before.png after.png --out strip.png
      cc-train imagine out/clevr/stage2 before.png after.png --out strip.png \\
          --stage1 out/clevr/stage1
    """
    from cc_train.report.strips import write

    echo(write(**options))


@click.command()
@click.argument("run", default="captioner-mini")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=7860,
    show_default=True,
    help="The port to listen on; 0 takes a free one.",
)
@click.option(
    "--examples",
    metavar="FILE|DIR",
    help="Pairs that the page offers; default: six pairs of the package.",
)
@click.option(
    "--collect", metavar="DIR", help="Store the captions that are entered in this folder."
)
@click.option("--pairs", metavar="FILE|DIR", help="With --collect: pairs to be captioned.")
@click.option(
    "--fetch", is_flag=True, help="Let the server ask the addresses that these lists name."
)
@click.option(
    "--token",
    metavar="TEXT",
    envvar="CC_TRAIN_TOKEN",
    show_envvar=True,
    help="What programs must send as `Authorization: Bearer TEXT`, and browsers as password.",
)
@device_option
@server_options
def serve(
    *,
    run: str,
    host: str,
    port: int,
    examples: str | None,
    collect: str | None,
    pairs: str | None,
    fetch: bool,
    token: str | None,
    device: str,
    url: str | None,
    model: str | None,
    prompt: str | None,
    key_variable: str | None,
    overrides: tuple[str, ...],
    no_probe: bool,
) -> None:
    """Serves a page for the browser that captions two images.

    RUN is the folder of a training or of an exported captioner, or captioner-mini. The page shows
    beams, confidence and, if the captioner provides them, the attention of each word and the
    imagined frames. No request leaves the machine, unless --fetch allows it, or --url, which has a
    multi-modal LLM of a server caption the images. --collect makes a data set of your own pairs: a
    table (pairs.jsonl) and LevirCCcaptions.json. --examples and --pairs take what `cc-train caption
    --pairs` takes. Programs ask for captions at /v1/caption, as /v1/openapi.json says. Needs the
    extra [serve].

    \b
    Examples:
      cc-train serve
      cc-train serve out/clevr/stage2 --collect data/own --pairs unlabelled/
    """
    from cc_prep import extras

    for module in ("starlette", "uvicorn", "python_multipart"):
        extras.require(module, "cc-train serve", "serve")
    from cc_train.runs import run_folder
    from cc_train.serve.server import make

    if pairs is not None and collect is None:
        raise UserError("--pairs without --collect", "Give the folder that captions go into too")
    chat = chat_captioner(url, model, prompt, key_variable, overrides, no_probe)
    if chat is not None and (run != run_folder.SHIPPED or device != "auto"):
        raise UserError("RUN and --device are not of --url", "Leave them out with --url")
    with make(
        run,
        host=host,
        port=port,
        examples=examples,
        pairs=pairs,
        collect=collect,
        fetch=fetch,
        device=device,
        token=token,
        chat=chat,
    ) as server:
        echo(f"{server.service.name}: {server.url} (Ctrl-C ends it)")
        if not server.is_local:
            who = "everybody who reaches this address" if token is None else "who has the token"
            echo(f"{who} can use the page")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            if server.collection is not None:
                server.collection.end()
            echo("ended")
