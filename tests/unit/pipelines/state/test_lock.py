"""One job at a time in a folder; a dead job's lock is no obstacle."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cc_prep import storage
from cc_prep.errors import JobFailed, StoreFailed, UserError
from cc_prep.storage.file_lock import file_lock
from pipelines.state import lock


def test_second_job_is_refused_with_the_firsts_name(tmp_path: Path) -> None:
    folder = str(tmp_path)
    with lock.locked(folder):
        assert lock.holder(folder).pid == os.getpid()
        message = f"process {os.getpid()} on {socket.gethostname()}"
        with pytest.raises(UserError, match=message), lock.locked(folder):
            pass
    assert lock.holder(folder) is None
    with lock.locked(folder):
        pass


def test_a_killed_jobs_lock_is_taken_over(tmp_path: Path) -> None:
    code = f"""
import time
from pipelines.state import lock
with lock.locked({str(tmp_path)!r}):
    print("in", flush=True)
    time.sleep(60)
"""
    job = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert job.stdout.readline() == b"in\n"
    with pytest.raises(UserError), lock.locked(str(tmp_path)):
        pass
    job.kill()
    job.wait()
    job.stdout.close()
    with lock.locked(str(tmp_path)):
        pass


def of_another_host(age: float = 0.0, id: str = "theirs") -> dict[str, object]:
    return {"host": "elsewhere", "pid": 1, "id": id, "beat": time.time() - age}


@pytest.fixture
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """A folder of its own on an object store."""
    folder = f"memory://lock-{abs(hash(request.node.name))}"
    yield folder
    for name in storage.list_files(f"{folder}/.state"):
        storage.remove(f"{folder}/.state/{name}")


def write(folder: str, value: dict[str, object]) -> None:
    storage.write_json(f"{folder}/.state/lock.json", value)


@pytest.mark.parametrize(("age", "alive"), [(0, True), (1000, False)])
def test_another_hosts_lock_counts_while_it_beats(path: str, age: int, alive: bool) -> None:
    write(path, of_another_host(age))
    assert (lock.holder(path) is not None) == alive


@pytest.mark.parametrize("off", [-86400, 86400])
@pytest.mark.parametrize("beats", [True, False])
def test_a_host_with_another_clock(
    path: str, monkeypatch: pytest.MonkeyPatch, off: int, beats: bool
) -> None:
    """Keeps away: a living job's lock taken over, and a dead one's kept for a day; and one that was
    taken over and looks dead until its first beat."""
    monkeypatch.setattr(lock, "STALE_SECONDS", 30 if beats else 0.5)
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.1)
    stop = threading.Event()

    def beating() -> None:
        while not stop.wait(0.05):
            write(path, of_another_host(off))

    write(path, of_another_host(off))
    thread = threading.Thread(target=beating)
    if beats:
        thread.start()
        try:
            with pytest.raises(UserError, match="process 1 on elsewhere"), lock.locked(path):
                pass
        finally:
            stop.set()
            thread.join()
    else:
        monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 30)
        with lock.locked(path):
            assert lock.holder(path) is not None
        assert storage.list_files(f"{path}/.state") == []


def test_a_lock_that_was_taken_over_is_left_to_its_owner(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a laptop that wakes up, renews its old lock and removes the other's."""
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.02)
    lost, theirs = threading.Event(), of_another_host()
    with lock.locked(path, lost.set) as held:
        write(path, theirs)
        assert lost.wait(30)
        assert held.stolen
        assert held.taken_by is not None
        assert str(held.taken_by) == "process 1 on elsewhere"
    assert storage.read_json(f"{path}/.state/lock.json") == theirs


def test_a_lock_taken_over_at_the_very_end_is_left_too(path: str) -> None:
    theirs = of_another_host()
    with lock.locked(path) as held:
        write(path, theirs)
    assert held.stolen
    assert storage.read_json(f"{path}/.state/lock.json") == theirs


def test_of_many_that_take_over_one_gets_it(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: two jobs that both watched a dead lock, and both go on."""
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.05)
    write(path, of_another_host(1000))
    holds, ends, refused = [], threading.Event(), []

    def take() -> None:
        try:
            with lock.locked(path):
                holds.append(1)
                ends.wait(30)
        except UserError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=take) for _ in range(6)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 30
    while len(refused) + len(holds) < 6 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (len(holds), len(refused)) == (1, 5)
    ends.set()
    for thread in threads:
        thread.join()


def test_a_claim_whose_owner_died_is_no_obstacle(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a folder of an object store that every job is refused, for a job that was killed
    while it took over the lock of a dead one."""
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.2)
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.05)
    write(path, of_another_host(1000))
    claim = f"{path}/.state/lock.json.after-theirs"
    storage.write_json(claim, of_another_host(1000, "first"))
    storage.write_json(f"{claim}.after-first", of_another_host(1000, "second"))
    with lock.locked(path):
        assert storage.list_files(f"{path}/.state") == ["lock.json"]
        assert lock._read(path).pid == os.getpid()


def test_a_claim_is_ours_though_the_answer_was_lost(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: the same, for a store that took the claim and whose answer did not come."""
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.2)
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.05)
    write(path, of_another_host(1000))
    create = storage.create_json

    def and_again(*arguments: object) -> bool:
        create(*arguments)  # type: ignore[arg-type]
        return create(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(storage, "create_json", and_again)
    with lock.locked(path):
        assert storage.list_files(f"{path}/.state") == ["lock.json"]


def test_the_claim_of_the_living_job_is_named(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: advice to remove the claim of a dead job, which leaves the living one's there."""
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.4)
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(lock, "_watch", lambda folder, before: None)
    write(path, of_another_host(1000))
    dead, create = f"{path}/.state/lock.json.after-theirs", storage.create_json
    living = f"{dead}.after-first"
    storage.write_json(dead, of_another_host(1000, "first"))
    storage.write_json(living, of_another_host(1000, "second"))
    beat = threading.Timer(0.1, storage.write_json, (living, of_another_host(0, "second")))

    def seen(name: str, value: object) -> bool:
        if name == living:
            beat.start()
        return create(name, value)

    monkeypatch.setattr(storage, "create_json", seen)
    with pytest.raises(UserError, match=rf"remove {living}$"), lock.locked(path):
        pass
    beat.join()


def test_a_claim_of_a_living_job_is_left_to_it(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: two jobs that both take over a dead one's lock."""
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(lock, "_watch", lambda folder, before: None)
    write(path, of_another_host(1000))
    claim, create = f"{path}/.state/lock.json.after-theirs", storage.create_json
    storage.write_json(claim, of_another_host(1000, "first"))

    def taken_meanwhile() -> None:
        write(path, of_another_host(0, "first"))
        storage.remove(claim)

    other = threading.Timer(0.1, taken_meanwhile)

    def seen(name: str, value: object) -> bool:
        if name == claim:
            other.start()
        return create(name, value)

    monkeypatch.setattr(storage, "create_json", seen)
    with pytest.raises(UserError, match="another job takes over"), lock.locked(path):
        pass
    other.join()
    assert lock._read(path).id == "first"


@pytest.mark.parametrize("job", [True, False])
def test_the_lock_of_a_copy_by_links_is_its_own(tmp_path: Path, job: bool) -> None:
    """Keeps away: "Too many levels of symbolic links" in a copy by `cp -rs`, and its job refused
    while one is at work in the folder that was copied."""
    (tmp_path / "old").write_text("")
    guard = tmp_path / ("copy/.state/lock.json.guard" if job else "copy/.lock")
    guard.parent.mkdir(parents=True)
    guard.symlink_to(tmp_path / "old")

    def take() -> None:
        with lock.locked(str(tmp_path / "copy")) if job else file_lock(guard, 1):
            pass

    with pytest.raises(UserError, match=rf"^{guard}: a lock that is a link.* Remove this link$"):
        take()
    guard.unlink()
    take()


def test_a_copy_by_links_is_refused_by_its_links_and_not_by_the_job_there(tmp_path: Path) -> None:
    """Keeps away: "Wait for it or stop it" in a copy by `cp -rs`, of the job that is at work in the
    folder that was copied."""
    old, copy = tmp_path / "old", tmp_path / "copy"
    with lock.locked(str(old)):
        subprocess.run(["cp", "-rs", old, copy], check=True)
        links = [copy / ".state/lock.json.guard", copy / ".state/lock.json"]
        with pytest.raises(UserError, match=rf"^{links[0]} and {links[1]}: .* Remove these links$"):
            lock.refuse_if_held(str(copy))
        for link in links:
            link.unlink()
        lock.refuse_if_held(str(copy))
        with lock.locked(str(copy)):
            pass


def test_the_first_error_is_the_one_to_show(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: "lock.json: the store failed" in the place of the worker's error."""

    def away(folder: str) -> None:
        raise StoreFailed("the store is away")

    def fail() -> None:
        monkeypatch.setattr(lock, "_read", away)
        raise JobFailed("the first")

    with pytest.raises(JobFailed, match="the first"), lock.locked(path):
        fail()
    monkeypatch.undo()
    storage.remove(f"{path}/.state/lock.json")
    with pytest.raises(StoreFailed, match="the store is away"), lock.locked(path):
        monkeypatch.setattr(lock, "_read", away)


def test_on_a_disk_a_living_owner_keeps_its_lock_however_silent(tmp_path: Path) -> None:
    """Keeps away: the lock of a suspended job, taken because its heartbeat stopped."""
    with lock.locked(str(tmp_path)):
        write(str(tmp_path), of_another_host(10**6))
        assert lock.holder(str(tmp_path)) is not None
        with pytest.raises(UserError, match="process 1 on elsewhere"), lock.locked(str(tmp_path)):
            pass


def test_a_dead_owners_lock_on_a_disk_is_free_at_once(tmp_path: Path) -> None:
    """Also of another host or container, of which no process can be asked whether it lives."""
    write(str(tmp_path), of_another_host())
    (tmp_path / ".state/lock.json.guard").touch()
    assert lock.holder(str(tmp_path)) is None
    with lock.locked(str(tmp_path)):
        assert str(os.getpid()) in str(lock.holder(str(tmp_path)))


def test_a_file_system_without_locks_has_files_in_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with lock.locked(str(tmp_path)):
        assert lock.holder(str(tmp_path)) is not None
        with pytest.raises(UserError, match="at work"), lock.locked(str(tmp_path)):
            pass
    assert lock.holder(str(tmp_path)) is None


def test_works_on_an_object_store() -> None:
    path = "memory://lock-test"
    with lock.locked(path), pytest.raises(UserError), lock.locked(path):
        pass
    assert lock.holder("memory://lock-test") is None


def test_how_long_a_silent_holder_counts(path: str) -> None:
    """Keeps away: a job of another host whose lock is taken over between two of its beats."""
    assert lock.HEARTBEAT_SECONDS == 10
    assert lock.STALE_SECONDS == 90, "several beats may be late"
    for age, alive in ((80, True), (-80, True), (100, False), (-100, False)):
        write(path, of_another_host(age))
        assert (lock.holder(path) is not None) is alive, age


def test_the_lock_is_renewed_while_it_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a long job whose lock looks abandoned, after its first failed beat."""
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.02)
    whole, failed = storage.write_json, []

    def failing_once(*arguments: object, **options: object) -> None:
        if not failed:
            failed.append(arguments)
            raise OSError(28, "No space left on device")
        whole(*arguments, **options)  # type: ignore[arg-type]

    with lock.locked(str(tmp_path)):
        first = lock.holder(str(tmp_path))
        monkeypatch.setattr(storage, "write_json", failing_once)
        deadline = time.monotonic() + 30
        while lock.holder(str(tmp_path)) == first and time.monotonic() < deadline:
            time.sleep(0.02)
        later = lock.holder(str(tmp_path))
    assert failed
    assert first is not None
    assert later is not None
    assert later.beat > first.beat
    assert (later.host, later.pid, later.id) == (first.host, first.pid, first.id)
    assert not (tmp_path / ".state/lock.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"host": "a"}'])
def test_a_damaged_lock_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / ".state").mkdir()
    (tmp_path / ".state/lock.json").write_text(text)
    assert lock.holder(str(tmp_path)) is None
    with lock.locked(str(tmp_path)):
        assert lock.holder(str(tmp_path)) is not None


@pytest.mark.parametrize(("processes", "held"), [("here", False), ("elsewhere", True), ("", True)])
def test_a_dead_process_of_this_machine_holds_no_stores_lock(
    path: str, monkeypatch: pytest.MonkeyPatch, processes: str, held: bool
) -> None:
    """Keeps away: 90 seconds of waiting after a kill, and a lock that is taken from another host's
    process of a number that nobody has here."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    monkeypatch.setattr(lock, "_processes", lambda: "here")
    record = {**of_another_host(), "pid": ended.pid, "processes": processes}
    storage.write_json(lock._path(path), record)
    if held:
        with pytest.raises(UserError, match="a job is at work there"), lock.locked(path):
            pass
        return
    assert lock.holder(path) is None
    with lock.locked(path):
        assert lock.holder(path).pid == os.getpid()
