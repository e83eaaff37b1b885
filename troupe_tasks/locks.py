"""Locks held by the kernel (flock(2)): a dead process leaves none behind.

Lock order, so that two commands never wait for each other: an agent's lock first, the machine's inside it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from troupe_tasks import durable
from troupe_tasks.errors import Locked
from troupe_tasks.paths import Paths

_MACHINE = ".machine"


@contextmanager
def agent(paths: Paths, agent_id: str) -> Iterator[None]:
    """Hold an agent's lock; another process holding it is Locked at once."""
    with _held(paths.locks / agent_id, wait_s=0, busy=f"another troupe command is working on {agent_id}"):
        yield


@contextmanager
def machine(paths: Paths) -> Iterator[None]:
    """Hold the machine-wide lock, for the moment in which a budget is checked and reserved."""
    with _held(
        paths.locks / _MACHINE, wait_s=30, busy="another troupe command has been reserving room for 30 s"
    ):
        yield


@contextmanager
def named(paths: Paths, name: str, *, wait_s: float) -> Iterator[None]:
    """Hold a lock for a thing that is neither an agent nor the budget (an image being built)."""
    with _held(paths.locks / f".{name}", wait_s=wait_s, busy=f"another troupe command is busy with {name}"):
        yield


def forget(paths: Paths, agent_id: str) -> None:
    """Remove an agent's lock file while holding it; whoever waits notices and takes the new one."""
    (paths.locks / agent_id).unlink(missing_ok=True)


@contextmanager
def _held(path: Path, *, wait_s: float, busy: str) -> Iterator[None]:
    durable.make_private_dir(path.parent)
    until = time.monotonic() + wait_s
    handle = _try(path)
    while handle is None:
        if time.monotonic() >= until:
            raise Locked(busy)
        time.sleep(0.05)
        handle = _try(path)
    try:
        yield
    finally:
        os.close(handle)


def _try(path: Path) -> int | None:
    with durable.told(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(handle, 0o600)  # whatever the umask took
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The last holder may have removed the file between our open and our lock.
        if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
            return handle
    except BlockingIOError:
        pass
    except FileNotFoundError:
        pass
    os.close(handle)
    return None
