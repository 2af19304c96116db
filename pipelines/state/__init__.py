"""The folder `.state/` of an output folder: the state of a job on disk.

    OUT/shards/
    ├── train-000000.tar
    ├── provenance.json …
    └── .state/
        ├── plan.json                    pairs by shard, as planned
        ├── train-000000.done.json       written after the shard itself: a shard is done if and
        │                                only if both are there (`journal.Done`)
        ├── train-000001.journal.json    while a worker is at it: pairs in flight, done and rejected
        │                                so far, and which pairs were in flight when a process
        │                                crashed (`journal.Journal`)
        ├── failures/<key>.txt           the whole traceback of a pair that is rejected as `failed`
        ├── <run>.run.json               while a run lasts: by it a worker knows that its node sees
        │                                the same folder as the driver
        ├── lock.json                    the running job's host and process (`lock.Holder`)
        └── lock.json.guard              locked by the kernel while a job runs, on a disk

Every file is a few kilobytes and written whole, so the folder can be read at any time.
"""

FOLDER = ".state"
