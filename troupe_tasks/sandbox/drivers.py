"""Open a driver by name, and tell which ones there are, the strongest first."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from troupe_tasks.errors import NotReady, TroupeError, UsageError
from troupe_tasks.paths import Paths
from troupe_tasks.record import agent_of
from troupe_tasks.sandbox.protocol import Isolation, Sandboxes
from troupe_tasks.secret import Secret
from troupe_tasks.text import line

NAMES = ("sbx", "capsule")


def open_driver(name: str, paths: Paths, *, isolation: Isolation | None = None) -> Sandboxes:
    """Return a driver; with isolation, one that makes sandboxes of that kind alone. Raises UsageError."""
    if name == "sbx":
        from troupe_tasks.sandbox.sbx.driver import Sbx

        return Sbx(paths)
    if name != "capsule":
        raise UsageError(f"there is no driver '{line(name, 40)}'", hint=f"Accepted: {', '.join(NAMES)}.")
    from troupe_tasks.sandbox.capsule.driver import Capsule
    from troupe_tasks.sandbox.capsule.engine import Engine
    from troupe_tasks.sandbox.capsule.gvisor import Gvisor
    from troupe_tasks.sandbox.capsule.namespaces import Namespaces

    engines: list[Engine] = [Gvisor(paths), Namespaces(paths)]
    return Capsule(paths, [engine for engine in engines if isolation in {None, engine.isolation}])


def available(paths: Paths) -> dict[str, Isolation | NotReady]:
    """Return, for every driver, what it isolates by here, or why it can't."""
    found: dict[str, Isolation | NotReady] = {}
    for name in NAMES:
        try:
            found[name] = open_driver(name, paths).isolation()
        except NotReady as error:
            found[name] = error
    return found


def strongest(paths: Paths, *, deadline_s: float = 10.0) -> str:
    """Return the first driver that is ready, and the last one where none is: the doctor says what that lacks.

    One that does not say so within deadline_s is not ready.
    """
    for name in NAMES[:-1]:
        said: list[Isolation] = []
        asking = threading.Thread(target=_ask, args=(open_driver(name, paths), said), daemon=True)
        asking.start()
        asking.join(deadline_s)
        if said:
            return name
    return NAMES[-1]


def _ask(driver: Sandboxes, said: list[Isolation]) -> None:
    with contextlib.suppress(TroupeError):
        said.append(driver.isolation())


def present(name: str) -> bool:
    """Tell whether a driver may have sandboxes here at all, without asking its runtime."""
    from troupe_tasks.sandbox.sbx import calls

    return name != "sbx" or calls.find() is not None


def may_have(name: str, paths: Paths, agent_id: str) -> bool:
    """Tell whether a driver may have a sandbox of an agent, without asking its runtime, which may be ill or gone."""
    from troupe_tasks.sandbox.sbx import saved

    kept = saved.place(paths, agent_id).parent  # which is written to before anything is made
    return name != "sbx" or (
        kept.is_dir() and any(agent_of(folder.name) == agent_id for folder in kept.iterdir())
    )


def disks(name: str, paths: Paths) -> Path:
    """Return the folder in which a driver keeps its sandboxes' disks."""
    from troupe_tasks.sandbox.sbx import environment

    return environment.disks() if name == "sbx" else paths.sandboxes


def has_docker_disk(name: str) -> bool:
    """Tell whether a driver's sandboxes have a second disk, for Docker."""
    return name == "sbx"


def most_memory_mib(name: str, total_mib: int) -> int:
    """Return the most memory that a driver gives one sandbox on a machine."""
    from troupe_tasks.sandbox.sbx import environment

    return environment.most_memory_mib(total_mib) if name == "sbx" else total_mib


def refuse_sizes(name: str, *, memory_mib: int, docker_mib: int) -> None:
    """Raise Refused for sizes that a driver makes no sandbox of, before anything is done."""
    if name == "sbx":
        from troupe_tasks.sandbox.sbx import environment

        environment.refuse(memory_mib=memory_mib, docker_mib=docker_mib)


def hand_over(name: str, registry: str, user: str, token: Secret) -> None:
    """Give a driver's runtime what opens a registry, where the runtime is one that pulls by itself."""
    if name == "sbx":
        from troupe_tasks.sandbox.sbx import host

        host.hand_over(registry, user, token)


def sbx_version() -> str:
    """Return the version of Docker's program, or why there is none to tell; asking starts no daemon."""
    from troupe_tasks.sandbox.sbx import answers, calls

    if calls.find() is None:
        return "not installed"
    try:
        found = calls.ask(answers.Version, ["version", "--json"], deadline_s=3)
    except TroupeError as error:
        return f"not known: {line(str(error), 200)}"
    return line(found.client.version, 80)
