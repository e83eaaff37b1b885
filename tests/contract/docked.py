"""What the tests of the sbx driver ask of a house with one sandbox; conftest.py makes it."""

from __future__ import annotations

from collections.abc import Callable

from tests.contract.conftest import ONE, Docker
from tests.contract.standin_sbx import sbx as standin
from troupe_tasks.sandbox.sbx import saved


def named(dock: Docker, one: str = ONE) -> str:
    return saved.load(dock.paths, one).name


def docker_has(dock: Docker) -> list[str]:
    return [one["name"] for one in standin.Place(dock.standin).sandboxes()]


def word(dock: Docker) -> bytes:
    dock.driver.start(ONE)
    return dock.driver.run(ONE, ["cat", "/state/word"], deadline_s=30).stdout


def asks(dock: Docker) -> list[Callable[[], object]]:
    """Return everything that is asked about a sandbox by its ID."""
    one = dock.driver
    return [
        lambda: one.start(ONE),
        lambda: one.stop(ONE, deadline_s=0.1),
        lambda: one.attach(ONE, ["true"]),
        lambda: one.create(dock.spec(ONE)),
        lambda: one.remove(ONE),
    ]
