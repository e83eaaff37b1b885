"""Kill a command at any point of any step, and what must hold of a house whatever was killed."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from tests.integration.house import Ended, House
from troupe_tasks.journal import Journal, Step
from troupe_tasks.operations import backup, create, delete, inventory, move, power, reset, secrets, upgrade
from troupe_tasks.paths import Paths

STEPS: dict[str, tuple[Step[Any], ...]] = {
    "create": create.STEPS, "delete": delete.STEPS, "stop": power.STOP, "start": power.START,
    "secret-set": secrets.SET, "secret-remove": secrets.REMOVE, "reset": reset.STEPS, "resize": move.STEPS,
    "restore": move.STEPS, "upgrade": upgrade.STEPS, "backup": backup.BACKUP, "drill": backup.DRILL,
}  # fmt: skip
# What a command that asks for a key is given.
KEY = "k-" + "0123456789abcdef" * 2


def places(operation: str) -> Iterator[str]:
    for number, step in enumerate(STEPS[operation]):
        for point in ("before", "inside", "done", "after") if number == 0 else ("inside", "done", "after"):
            yield f"{operation}/{step.name}/{point}"


def only_looked(place: str) -> bool:
    """Tell whether an operation that is killed at a place has not even looked at everything: it keeps nobody out."""
    operation, name, point = place.split("/")
    looks = [step.name for step in STEPS[operation] if step.only_looks]
    return name in looks and (point != "after" or name != looks[-1])


def woven(first: str, second: str) -> list[str]:
    """Return the places of two operations in turn: what one makes, the other takes away, so nothing is made twice."""
    pairs = zip_longest(places(first), places(second))
    return [place for place in chain.from_iterable(pairs) if place is not None]


def kill_at(house: House, place: str, command: tuple[str, ...]) -> Ended:
    victim = Path(__file__).with_name("victim.py")
    house.argv(*command)
    done = subprocess.run(
        [sys.executable, str(victim), place, *command], input=f"{KEY}\n", capture_output=True,
        encoding="utf-8", env=house.env(), cwd="/", timeout=100, check=False,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr)


def killed_everywhere(
    house: House, operation: str, command: tuple[str, ...], *, agent: str,
    still: Callable[[House], None] = lambda _house: None,
) -> None:  # fmt: skip
    """Kill one operation at each of its places in turn, each time going on from where the last kill left it.

    After each kill every file is whole, what the operation promises meanwhile (still) holds, and the agent has
    unfinished business that the command itself finishes. At the end it is one run short of its end.
    """
    for place in places(operation):
        killed = kill_at(house, place, command)
        assert killed.status == -signal.SIGKILL, f"{place}: {killed}"
        whole(house)
        left = inventory.pending(house.rooms, agent)
        assert left is not None, place
        assert left.finish.startswith(f"troupe {shlex.join(command[:2])}"), place
        still(house)


def whole(house: House) -> None:
    """Assert that every file of state is whole, whatever was killed."""
    for path in house.files():
        if path.suffix == ".json" and not path.name.startswith("."):
            json.loads(path.read_bytes())
    for folder in receipts(house.paths):
        Journal(house.paths, folder.name)  # raises Tampered unless the chain holds


def receipts(paths: Paths) -> list[Path]:
    place = paths.receipts("any").parent
    return [folder for folder in place.iterdir() if not folder.name.startswith(".")] if place.is_dir() else []
