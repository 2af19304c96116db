"""The driver's account of finished shards in an output folder: read once, then added to.

A listing of a network file system may lag behind, so the driver relies on the records that workers
return, and not on the files that it sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cc_prep import storage
from cc_prep.errors import JobFailed
from cc_prep.formats import provenance, rejects, training_shards
from cc_prep.formats.tar import ShardFormat
from pipelines.state.journal import Done, State

NAMED = 5  # missing shards that a message names


class Account:
    """The finished shards of a folder by name.

    Args:
        planned: Pairs by shard.

    Attributes:
        finished: The shards of `planned` whose file has the recorded size, and all shards of other
            plans. Whether a file's bytes are those that were written is not asked here, since
            reading all shards at each start would take as long as `cc-prep verify`.
        whole: Those of them that need no more work.
    """

    def __init__(self, format: ShardFormat, folder: str, planned: Mapping[str, int]) -> None:
        self.format, self.folder = format, folder
        sizes = storage.sizes(folder)
        self.finished = {
            name: done
            for name, done in State(folder).done().items()
            if (name not in planned or sizes.get(format.file(name)) == done.bytes)
            and len(done.index) == (done.samples if format.indexed else 0)
        }
        self.whole = {
            name: done
            for name, done in self.finished.items()
            if planned.get(name, done.pairs) == done.pairs
        }

    def make_again(self, shards: Iterable[str]) -> None:
        """Counts shards as not whole, until they are added again; they stay `finished`."""
        for name in shards:
            self.whole.pop(name, None)

    def add(self, done: Done) -> None:
        """Adds a shard that a worker has finished."""
        self.finished[done.shard] = self.whole[done.shard] = done

    def write(self, planned: Mapping[str, int], record: Mapping[str, Any]) -> None:
        """Writes index, rejects and provenance of all shards finished so far.

        The provenance comes last, since its `complete` speaks for the other two as well.

        Args:
            planned: Pairs by shard, over all runs.
            record: The provenance's other keys.
        """
        in_order = [done for _, done in sorted(self.finished.items())]
        if self.format.indexed:
            training_shards.write_index(self.folder, {done.shard: done.index for done in in_order})
        rejects.write(self.folder, [reject for done in in_order for reject in done.rejects])
        shards = {
            name: {
                "samples": done.samples,
                "rejected": len(done.rejects),
                "bytes": done.bytes,
                "sha256": done.sha256,
                "input_digest": done.input_digest,
                **({"gpu": done.gpu} if done.gpu else {}),
            }
            for name, done in sorted(self.finished.items())
        }
        provenance.write(
            self.folder,
            {
                **record,
                "format": self.format.name,
                "format_version": self.format.version,
                "software": provenance.software(),
                "complete": all(
                    name in self.whole and self.whole[name].pairs == pairs
                    for name, pairs in planned.items()
                ),
                "planned": dict(planned),
                "shards": shards,
            },
        )


def check_all_came_back(planned: set[str], returned: set[str]) -> None:
    """Raises JobFailed, naming the shards, if workers did not return all planned shards."""
    missing = sorted(planned - returned)
    if missing:
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        raise JobFailed(
            f"{len(missing)} shards did not come back from the workers: "
            f"{', '.join(missing[:NAMED])}{more}"
        )
