"""Commands of `cc-train` that hand networks on, or take them over: export, import-…"""

from __future__ import annotations

from typing import Any

import click

from cc_prep.terminal import echo
from cc_train import systems
from cc_train.cli.options import SHARDS, run_folder_option, shards_option


@click.command()
@click.argument("run")
@click.argument("out", metavar="DIR")
@shards_option("Held-out shards to measure on")
@click.option(
    "--calibrate",
    multiple=True,
    metavar="SHARDS",
    help=f"Other held-out shards of rendered pairs, to give captions a confidence: {SHARDS}.",
)
@click.option("--data", metavar="TEXT", help="The training data, in words for the card.")
@click.option("--license", "licence", metavar="ID", help="Licence of the weights, such as mit.")
@click.option(
    "--by-name",
    is_flag=True,
    help="Leave out frozen networks that the package has (runs of stage2 only).",
)
@click.option(
    "--onnx",
    is_flag=True,
    help="Write the networks as ONNX, for other programs and browsers; without measuring.",
)
@click.option("--push", "repo_id", metavar="OWNER/NAME", help="Also upload the folder to the hub.")
@click.option(
    "--private",
    is_flag=True,
    help="With --push: the repository must be private; a new one is made so.",
)
def export(
    *,
    run: str,
    out: str,
    shards: tuple[str, ...],
    calibrate: tuple[str, ...],
    data: str | None,
    licence: str | None,
    by_name: bool,
    onnx: bool,
    repo_id: str | None,
    private: bool,
) -> None:
    """Exports RUN's best network, with a card of its quality.

    The weights become float16 safetensors. A captioner becomes the folder DIR, which is used like a
    run; without --shards its card has the scores of an earlier `cc-train evaluate RUN`. Other
    networks become DIR.safetensors and DIR.md. SHARDS must hold samples that the training did not
    see: training shards for a captioner, sequence shards for the others. For a run of stage2,
    --by-name makes a smaller folder: frozen networks that come with the package are named
    and not copied. --push needs the extra [hub] and a login (`hf auth login`).

    --onnx writes the networks of a pair captioner or of photos-mini, compares each with torch, and
    with a pair captioner adds a page that captions in the browser. It needs the extra [onnx].

    \b
    Examples:
      cc-train export captioner-mini web --onnx
      cc-train export out/clevr/stage2 mine --shards 'out/clevr/shards/test-*.tar' --data CLEVR
      cc-train export runs/vqgan weights/my-vqgan --shards 'out/held/sequences/*.tar'
    """
    from pathlib import Path

    from cc_prep import extras
    from cc_prep.errors import UserError
    from cc_train.sharing import hub
    from cc_train.sharing.export import Details
    from cc_train.sharing.export import export as export_run

    if onnx:
        if any((shards, calibrate, data, licence, by_name, repo_id, private)):
            raise UserError("--onnx writes networks without a card", "Leave the other options out")
        for module in ("onnxscript", "onnxruntime"):
            extras.require(module, "--onnx", "onnx")
        from cc_train.sharing import onnx_export

        for file in onnx_export.export(run, Path(out)):
            echo(file)
        return
    if repo_id is not None:
        hub.check_id(repo_id)
        hub.require_captioner(hub.locate(run))
    elif private:
        raise UserError("--private without --push", "Give --push OWNER/NAME too")
    files = export_run(run, Path(out), Details(shards, calibrate, licence, data, by_name))
    for file in files:
        echo(file)
    if repo_id is not None:
        echo(hub.upload(Path(out), repo_id, private=private))


@click.command("import-procap")
@click.argument("file")
@run_folder_option
@click.option("--word2idx", metavar="FILE", help="Its word2idx.json, for a stage-2 checkpoint.")
@click.option(
    "--heads",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Number of attention heads of its decoder.",
)
@click.option(
    "--length",
    type=click.IntRange(3),
    default=24,
    show_default=True,
    help="Maximum length of a caption, in tokens.",
)
@click.option("--config", metavar="FILE", help="taming-transformers' YAML of its VQGAN.")
def import_procap(**options: Any) -> None:
    """Makes a run of a published checkpoint of ProCap.

    FILE is dalle.pt or model.chkpt. Only tensors are read; nothing in the file is executed. Tensors
    that are not used are named.

    \b
    Example:
      cc-train import-procap model.chkpt --word2idx word2idx.json --out runs/procap
    """
    from pathlib import Path

    from cc_train.text import VOCABULARY

    run = Path(options.pop("run"))
    for line in systems.importer("procap").make_run(run=run, **options):
        echo(line)
    if (run / VOCABULARY).exists():
        echo(f"Try: cc-train caption {run} before.png after.png")


@click.command("import-scorer")
@click.argument("file")
@click.option("--vocabulary", required=True, metavar="FILE", help="Its vocab.json: {word: id}.")
@run_folder_option
@click.option(
    "--heads",
    type=click.IntRange(1),
    help="Number of attention heads of its encoder, where FILE does not state it.",
)
@click.option(
    "--decoder-heads",
    type=click.IntRange(1),
    help="Number of attention heads of its decoder, where FILE does not state it.",
)
@click.option(
    "--backbone-weights",
    metavar="FILE",
    help="torchvision's ResNet-101 (V1); with it the run also captions images, not only stored "
    "features.",
)
def import_scorer(**options: Any) -> None:
    """Makes a run of a checkpoint of SCORER's public code.

    Only tensors are read; nothing in the file is executed. Tensors that are not used are named.

    \b
    Example:
      cc-train import-scorer scorer_checkpoint_10000.pt --vocabulary vocab.json --out runs/scorer \\
          --backbone-weights resnet101.pth
    """
    from pathlib import Path

    run = Path(options.pop("run"))
    for line in systems.importer("scorer").make_run(run=run, **options):
        echo(line)
    echo(f"Try: cc-train evaluate {run} --shards 'out/clevr/shards/test-*.tar'")
