"""What the tests inside the guest share. Their programs are shell: under emulation Python takes a second to start."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from troupe_tasks.paths import Paths
from troupe_tasks.services.protocol import Phase, Service
from troupe_tasks.services.systemd import Systemd

STAYS = "echo up; exec sleep 9999"
DEAF = "trap '' INT; echo up; while :; do sleep 1; done"
NAME = "gateway-jane"


def home(folder: Path) -> Paths:
    """Return the places of a home in folder."""
    return Paths(data=folder / "data/troupe", config=folder / "config/troupe", state=folder / "state/troupe")


def service(paths: Paths, script: str = STAYS, **more: object) -> Service:
    """Return a service that runs a shell script."""
    plain: dict[str, object] = {
        "name": NAME, "argv": ("/bin/sh", "-c", script), "start_s": 1, "start_tries": 3, "stop_wait_s": 10,
    }  # fmt: skip
    given = plain | more
    return Service(log=paths.logs("jane") / f"{given['name']}.log", **given)  # type: ignore[arg-type]


def until(what: Callable[[], bool], deadline_s: float = 60) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < end, "the awaited did not happen"
        time.sleep(0.1)


def started(keeper: Systemd, one: Service) -> int:
    """Start a service, wait until its program has spoken, and return its process."""
    keeper.add(one)
    keeper.start([one.name])
    until(lambda: one.log.is_file() and b"up" in one.log.read_bytes())
    return pid(keeper, one.name)


def phase(keeper: Systemd, name: str = NAME) -> Phase:
    """Return a service's phase."""
    return keeper.states()[name].phase


def pid(keeper: Systemd, name: str = NAME) -> int:
    """Return a service's process, once it has one."""
    until(lambda: keeper.states()[name].pid is not None)
    return keeper.states()[name].pid or 0


def is_gone(process: int) -> bool:
    """Tell whether a process has ended."""
    return not Path("/proc", str(process), "exe").exists()
