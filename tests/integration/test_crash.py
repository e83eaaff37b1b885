"""Every operation, killed at every point of every step, and run again: the outcome is the finished one.

Steps and points are read from the code, so a new step is in here by itself. `before` is taken for the first step
only: nothing is done between the receipt of a step (`after`) and the next step's beginning.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import pytest

from tests.integration.house import Ended, House, cgroups, loops, wait_until
from troupe_tasks import operations
from troupe_tasks import record as records
from troupe_tasks.journal import Journal, Step
from troupe_tasks.operations import create, delete, inventory, power
from troupe_tasks.paths import Paths
from troupe_tasks.sandbox.protocol import GUEST_DIR

STEPS: dict[str, tuple[Step[Any], ...]] = {
    "create": create.STEPS, "delete": delete.STEPS, "stop": power.STOP, "start": power.START,
}  # fmt: skip
NAME, ID = "Crash Test", "crash-test"
COMMANDS = {
    "create": ("create", "probe", "--name", NAME, "--rehearsal"),
    "delete": ("delete", ID, "--yes-i-mean", NAME),
    "stop": ("stop", ID),
    "start": ("start", ID),
}
# Another operation, which an unfinished one keeps out. Deleting keeps nothing out: it may give up any other.
OTHER = {"create": "start", "delete": "start", "stop": "start", "start": "stop"}
COUNT_INSIDE = f"""\
import os
found = 0
for name in os.listdir("/proc"):
    if name.isdigit():
        try:
            words = open(f"/proc/{{name}}/cmdline", "rb").read().split(b"\\0")
        except OSError:
            continue
        found += words[-3:-1] == [b"{GUEST_DIR}/probe.py", b"gateway"] and b"reap.py" not in b" ".join(words)
print(found)
"""

pytestmark = [pytest.mark.network, pytest.mark.real_home, pytest.mark.timeout(120)]


def places(operation: str) -> Iterator[str]:
    for number, step in enumerate(STEPS[operation]):
        for point in ("before", "inside", "done", "after") if number == 0 else ("inside", "done", "after"):
            yield f"{operation}/{step.name}/{point}"


def woven(first: str, second: str) -> list[str]:
    """Return the places of two operations in turn: what one makes, the other takes away, so nothing is made twice."""
    pairs = zip_longest(places(first), places(second))
    return [place for place in chain.from_iterable(pairs) if place is not None]


def kill_at(house: House, place: str, command: tuple[str, ...]) -> Ended:
    victim = Path(__file__).with_name("victim.py")
    house.argv(*command)
    done = subprocess.run(
        [sys.executable, str(victim), place, *command], stdin=subprocess.DEVNULL, capture_output=True,
        encoding="utf-8", env=house.env(), cwd="/", timeout=100, check=False,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr)


def prepare(house: House, operation: str) -> None:
    """Bring the agent into the state in which the operation has something to do."""
    record = records.find(house.paths, ID)
    if operation == "create":
        if record is not None:
            house.delete(NAME)
        return
    if record is None:
        house.create(NAME)
    wanted = "down" if operation == "start" else "up"
    if records.load(house.paths, ID).wanted != wanted:
        done = house.troupe("stop" if wanted == "down" else "start", ID)
        assert done.status == 0, done


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


def clients(house: House) -> list[int]:
    """Return the host's processes that hold a gateway of the agent open."""
    found = ((pid, words) for pid, words in house.processes() if words[0].endswith("/runsc"))
    return [pid for pid, words in found if ID in words and "exec" in words and "gateway" in words]


def sandboxes(house: House) -> list[str]:
    mark = str(house.paths.sandbox(ID))
    found = (words for _, words in house.processes() if words[0] in ("runsc-gofer", "runsc-sandbox"))
    return [words[0] for words in found if any(mark in word for word in words)]


def inside(house: House) -> int:
    """Return how many gateways run inside the sandbox, whoever holds them open."""
    count = ["/usr/bin/python3", "-I", "-S", "-c", COUNT_INSIDE]
    return int(house.rooms.driver().run(ID, count, deadline_s=60).stdout)


def assert_running(house: House) -> None:
    whole(house)
    found = inventory.full(house.rooms, ID)
    assert found.agent.state in ("running", "starting"), found.agent
    assert found.agent.unfinished is None
    assert found.record.wanted == "up"
    assert found.self_test is not None
    assert found.self_test.passed, found.self_test
    assert sorted(sandboxes(house)) == ["runsc-gofer", "runsc-sandbox"]
    assert [path.name for path in loops() if path.is_relative_to(house.paths.sandbox(ID))] == ["disk.ext4"]
    assert len({folder.name for folder in cgroups(ID)}) == 1
    wait_until(lambda: clients(house) != [])  # the services start it, and nobody waits for that
    assert len(clients(house)) == 1
    wait_until(lambda: inside(house) != 0)
    assert inside(house) == 1
    assert sorted(path.name for path in house.paths.egress(ID).iterdir()) == ["policy.json", "socket"]


def assert_stopped(house: House) -> None:
    whole(house)
    found = inventory.full(house.rooms, ID)
    assert found.agent.state == "stopped", found.agent
    assert found.agent.unfinished is None
    assert found.record.wanted == "down"
    assert sandboxes(house) == []
    assert clients(house) == []
    assert [path for path in loops() if path.is_relative_to(house.paths.sandbox(ID))] == []
    assert cgroups(ID) == []


def assert_gone(house: House) -> None:
    whole(house)
    assert house.traces(ID) == []


FINISHED: dict[str, Callable[[House], None]] = {
    "create": assert_running, "start": assert_running, "stop": assert_stopped, "delete": assert_gone,
}  # fmt: skip


def test_every_operation_is_in_this_suite() -> None:
    found = set()
    for module in pkgutil.iter_modules(operations.__path__):
        values = vars(importlib.import_module(f"{operations.__name__}.{module.name}")).values()
        found |= {
            value for value in values if isinstance(value, tuple) and value and isinstance(value[0], Step)
        }
    assert found == set(STEPS.values())


@pytest.mark.parametrize("place", [*woven("create", "delete"), *woven("stop", "start")])
def test_killed_and_run_again_it_finishes(house: House, place: str) -> None:
    operation = place.partition("/")[0]
    prepare(house, operation)
    killed = kill_at(house, place, COMMANDS[operation])
    assert killed.status == -signal.SIGKILL, killed
    whole(house)
    other = house.troupe(OTHER[operation], ID)
    assert other.status == 3, other
    words = COMMANDS[operation][:2]
    assert f"troupe {shlex.join(words)}" in other.err, other
    again = house.troupe(*COMMANDS[operation])
    assert again.status == 0, again
    FINISHED[operation](house)


@pytest.mark.parametrize("step", [step.name for step in create.STEPS])
def test_delete_takes_away_an_interrupted_create(house: House, step: str) -> None:
    prepare(house, "create")
    killed = kill_at(house, f"create/{step}/done", COMMANDS["create"])
    assert killed.status == -signal.SIGKILL, killed
    done = house.troupe(*COMMANDS["delete"])
    assert done.status == 0, done
    assert_gone(house)


@pytest.mark.parametrize("operation", ["create", "stop", "start", "delete"])
@pytest.mark.timeout(600)
def test_killed_again_and_again_one_call_later_each_time_it_finishes(house: House, operation: str) -> None:
    prepare(house, operation)
    count, ended = 1, kill_at(house, "calls/1", COMMANDS[operation])
    while ended.status == -signal.SIGKILL:
        whole(house)
        count += 1
        ended = kill_at(house, f"calls/{count}", COMMANDS[operation])
    assert ended.status in (0, 3), ended
    again = house.troupe(*COMMANDS[operation])
    assert again.status in (0, 3), again
    FINISHED[operation](house)
