"""Open a driver by name, and tell which ones there are, the strongest first."""

from __future__ import annotations

from troupe_tasks.errors import NotReady, TroupeError, UsageError
from troupe_tasks.paths import Paths
from troupe_tasks.sandbox.protocol import Isolation, Sandboxes
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


def strongest(paths: Paths) -> str:
    """Return the first driver that is ready, and the last one where none is: the doctor says what that lacks."""
    for name in NAMES[:-1]:
        try:
            open_driver(name, paths).isolation()
        except TroupeError:
            continue
        return name
    return NAMES[-1]


def present(name: str) -> bool:
    """Tell whether a driver may have sandboxes here at all, without asking its runtime."""
    from troupe_tasks.sandbox.sbx import calls

    return name != "sbx" or calls.find() is not None
