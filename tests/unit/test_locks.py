"""Locks: held by the kernel, against a real second process."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from troupe_tasks import locks
from troupe_tasks.errors import FolderUnusable, Locked
from troupe_tasks.paths import Paths

ROOT = Path(__file__).resolve().parents[2]
HOLDER = """
import sys
from troupe_tasks import locks
from troupe_tasks.paths import Paths
paths = Paths.from_env()
with getattr(locks, sys.argv[1])(paths, *sys.argv[2:]):
    print("held", flush=True)
    sys.stdin.readline()
    if sys.argv[2:]:
        locks.forget(paths, sys.argv[2])
"""


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.from_env({"HOME": str(tmp_path)})


@contextmanager
def holder(paths: Paths, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Hold a lock in a second process, until a line is written to it or it is killed."""
    home = str(paths.state.parents[2])
    env = {**os.environ, "HOME": home, "XDG_STATE_HOME": "", "XDG_DATA_HOME": "", "XDG_CONFIG_HOME": ""}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, *words],
        cwd=ROOT,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"held\n"
            yield child
        finally:
            child.kill()


def test_a_second_process_is_told_at_once(paths: Paths) -> None:
    with holder(paths, "agent", "mr-doyle"):
        with pytest.raises(Locked, match="working on mr-doyle"), locks.agent(paths, "mr-doyle"):
            pytest.fail("both hold it")
        with locks.agent(paths, "another"), locks.machine(paths):
            pass


def test_the_lock_is_free_after_its_work_however_that_ended(paths: Paths) -> None:
    with pytest.raises(ZeroDivisionError), locks.agent(paths, "a"):
        raise ZeroDivisionError
    with locks.agent(paths, "a"):
        pass


def test_one_process_cannot_hold_it_twice(paths: Paths) -> None:
    with locks.agent(paths, "a"), pytest.raises(Locked), locks.agent(paths, "a"):
        pytest.fail("held twice")


def test_a_killed_holder_leaves_no_lock(paths: Paths) -> None:
    with holder(paths, "agent", "a") as child:
        child.kill()
        child.wait()
        with locks.agent(paths, "a"):
            pass


def test_the_machine_lock_is_waited_for(paths: Paths) -> None:
    with holder(paths, "machine") as child:
        begun, done = Event(), Event()

        def wait() -> None:
            begun.set()
            with locks.machine(paths):
                done.set()

        waiter = Thread(target=wait)
        waiter.start()
        assert begun.wait(10)
        assert not done.wait(0.2)
        child.kill()
        assert done.wait(10)
        waiter.join(10)


def test_a_wait_has_an_end(paths: Paths) -> None:
    again = locks.named(paths, "image", wait_s=0.1)
    with locks.named(paths, "image", wait_s=0), pytest.raises(Locked, match="busy with image"), again:
        pytest.fail("held twice")


def test_forgetting_while_another_waits_lets_one_in_at_a_time(paths: Paths) -> None:
    with locks.named(paths, "x", wait_s=0):
        entered: list[int] = []

        def wait() -> None:
            with locks.named(paths, "x", wait_s=10):
                entered.append((paths.locks / ".x").stat().st_ino)

        waiters = [Thread(target=wait) for _ in range(4)]
        for waiter in waiters:
            waiter.start()
        locks.forget(paths, ".x")
        # A new file can be locked while the old one is still held: that is why the holder forgets last.
    for waiter in waiters:
        waiter.join(20)
    assert len(entered) == 4


def test_whoever_got_the_removed_file_takes_the_new_one(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock
    calls: list[int] = []

    def removed_meanwhile(handle: int, operation: int) -> None:
        if not calls:
            (paths.locks / ".x").unlink()  # as another process's forget(), between our open and our lock
        calls.append(handle)
        real(handle, operation)

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    with locks.named(paths, "x", wait_s=5):
        assert len(calls) == 2
        assert (paths.locks / ".x").stat().st_nlink == 1


def test_a_holder_that_forgets_leaves_no_file(paths: Paths) -> None:
    with holder(paths, "agent", "a") as child:
        child.communicate(b"\n", timeout=20)
        assert child.returncode == 0
    assert not (paths.locks / "a").exists()
    with locks.agent(paths, "a"):
        pass


def test_the_lock_file_is_private_and_no_link(paths: Paths) -> None:
    before = os.umask(0o777)
    try:
        with locks.agent(paths, "a"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((paths.locks / "a").stat().st_mode) == 0o600
    assert stat.S_IMODE(paths.locks.stat().st_mode) == 0o700
    (paths.locks / "b").symlink_to("/etc/passwd")
    with pytest.raises(FolderUnusable), locks.agent(paths, "b"):
        pytest.fail("a link was locked")
