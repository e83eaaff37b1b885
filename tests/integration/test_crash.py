"""Every operation, killed at every point of every step, and run again: the outcome is the finished one.

One agent goes through all kills of an operation in turn; each kill by itself, with a finished run after it, is for
`nox -s chaos`.
Steps and points are read from the code, so a new step is in here by itself. `before` is taken for the first step
only: nothing is done between the receipt of a step (`after`) and the next step's beginning.
"""

from __future__ import annotations

import importlib
import pkgutil
import shlex
import signal
from collections.abc import Callable

import pytest

from tests.integration.crash import STEPS, kill_at, killed_everywhere, only_looked, whole, woven
from tests.integration.house import House, cgroups, loops, wait_until
from troupe_tasks import operations
from troupe_tasks import record as records
from troupe_tasks.journal import Step
from troupe_tasks.operations import create, inventory
from troupe_tasks.sandbox.protocol import GUEST_DIR

NAME, ID = "Crash Test", "crash-test"
COMMANDS = {
    "create": ("create", "probe", "--name", NAME, "--rehearsal"),
    "delete": ("delete", ID, "--yes-i-mean", NAME),
    "stop": ("stop", ID),
    "start": ("start", ID),
}
# Another operation, which an unfinished one keeps out. Deleting keeps nothing out: it may give up any other.
OTHER = {
    "create": "start", "delete": "start", "stop": "start", "start": "stop",
}  # fmt: skip
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


def clients(house: House) -> list[int]:
    """Return the host's processes that hold a gateway of the agent open."""
    found = ((pid, words) for pid, words in house.processes() if words[0].endswith("/runsc"))
    return [pid for pid, words in found if f"{ID}." in words and "exec" in words and "gateway" in words]


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


# Each call of a start and a stop is killed on the stage of tests/model in every run.
@pytest.mark.parametrize(
    "operation",
    ["create", *(pytest.param(one, marks=pytest.mark.chaos) for one in ("stop", "start")), "delete"],
)
@pytest.mark.timeout(300)
def test_killed_at_every_point_in_turn_it_goes_on_and_finishes(house: House, operation: str) -> None:
    prepare(house, operation)
    killed_everywhere(house, operation, COMMANDS[operation], agent=ID)
    other = house.troupe(OTHER[operation], ID)
    assert other.status == 3, other
    assert f"troupe {shlex.join(COMMANDS[operation][:2])}" in other.err, other
    again = house.troupe(*COMMANDS[operation])
    assert again.status == 0, again
    FINISHED[operation](house)


@pytest.mark.chaos
@pytest.mark.parametrize("place", [*woven("create", "delete"), *woven("stop", "start")])
def test_killed_and_run_again_it_finishes(house: House, place: str) -> None:
    operation = place.partition("/")[0]
    prepare(house, operation)
    killed = kill_at(house, place, COMMANDS[operation])
    assert killed.status == -signal.SIGKILL, killed
    whole(house)
    if not only_looked(place):
        other = house.troupe(OTHER[operation], ID)
        assert other.status == 3, other
        words = COMMANDS[operation][:2]
        assert f"troupe {shlex.join(words)}" in other.err, other
    again = house.troupe(*COMMANDS[operation])
    assert again.status == 0, again
    FINISHED[operation](house)


@pytest.mark.parametrize("step", [step.name for step in create.STEPS[::4]])
def test_delete_takes_away_an_interrupted_create(house: House, step: str) -> None:
    prepare(house, "create")
    killed = kill_at(house, f"create/{step}/done", COMMANDS["create"])
    assert killed.status == -signal.SIGKILL, killed
    done = house.troupe(*COMMANDS["delete"])
    assert done.status == 0, done
    assert_gone(house)


@pytest.mark.parametrize(
    "operation",
    ["create", *(pytest.param(one, marks=pytest.mark.chaos) for one in ("delete", "stop", "start"))],
)
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
