"""The command that makes trained networks ready for others."""

from __future__ import annotations

import click

from cc_prep.terminal import echo
from cc_train.options import SHARDS, shards_option


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
    repo_id: str | None,
    private: bool,
) -> None:
    """Exports RUN's best network as float16 safetensors, with a card that states its quality.

    A captioner becomes the folder DIR, which is used like a run; without --shards its card has the
    scores of an earlier `cc-train evaluate RUN`. Other networks become DIR.safetensors and DIR.md.
    SHARDS must hold samples that the training did not see: training shards for a captioner,
    sequence shards for the others. For a run of stage2, --by-name makes a smaller folder: frozen
    networks that the package has, or fetches, are named and not copied. --push needs the extra
    [hub] and a login (`hf auth login`).

    \b
    Examples:
      cc-train export out/clevr/stage2 mine --shards 'out/clevr/shards/test-*.tar' --data CLEVR
      cc-train export runs/vqgan weights/my-vqgan --shards 'out/held/sequences/*.tar'
    """
    from pathlib import Path

    from cc_prep.errors import UserError
    from cc_train.sharing import hub
    from cc_train.sharing.export import Details
    from cc_train.sharing.export import export as export_run

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
