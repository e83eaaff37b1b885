"""A key given to an agent or taken away, killed at every point of every step, and run again."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator

import pytest

from tests.integration.crash import KEY, kill_at, killed_everywhere, whole, woven
from tests.integration.house import House
from tests.integration.keyed import ID, keyed, needs_port
from troupe_tasks import record as records
from troupe_tasks.egress import policy
from troupe_tasks.operations import inventory
from troupe_tasks.operations.outfit import ENV_FILE

COMMANDS = {"secret-set": ("secret", "set", ID, "files"), "secret-remove": ("secret", "remove", ID, "files")}

pytestmark = [pytest.mark.network, pytest.mark.real_home, pytest.mark.timeout(120), needs_port]


def assert_keyed(house: House, *, kept: bool) -> None:
    whole(house)
    found = inventory.full(house.rooms, ID)
    assert found.agent.unfinished is None
    assert found.record.services == (("model", "files") if kept else ("model",))
    allowed = policy.load(house.paths, ID)
    assert [rule.service for rule in allowed.services] == list(found.record.services)
    folder = house.home / ".local/state/credentials" / ID
    assert sorted(path.name for path in folder.iterdir()) == [
        *(["files.key"] if kept else []),
        "model.key",
        "tier",
    ]
    lines = house.rooms.driver().run(ID, ["cat", ENV_FILE], deadline_s=60).stdout.decode().splitlines()
    stand_ins = [f"FILES_KEY={rule.stand_in}" for rule in allowed.services if rule.service == "files"]
    assert [line for line in lines if line.startswith("FILES_KEY=")] == stand_ins


def prepare(house: House, operation: str) -> None:
    has = "files" in records.load(house.paths, ID).services
    if has == (operation == "secret-set"):
        opposite = "secret-remove" if has else "secret-set"
        done = house.troupe(*COMMANDS[opposite], input=f"{KEY}\n")
        assert done.status == 0, done


@pytest.fixture(scope="module")
def keyed_house(house: House) -> Iterator[House]:
    with keyed(house, key=KEY):
        yield house


@pytest.mark.parametrize("operation", ["secret-set", pytest.param("secret-remove", marks=pytest.mark.chaos)])
@pytest.mark.timeout(300)
def test_a_key_killed_at_every_point_in_turn_is_finished(keyed_house: House, operation: str) -> None:
    prepare(keyed_house, operation)
    killed_everywhere(keyed_house, operation, COMMANDS[operation], agent=ID)
    other = keyed_house.troupe("stop", ID)
    assert other.status == 3, other
    again = keyed_house.troupe(*COMMANDS[operation], input=f"{KEY}\n")
    assert again.status == 0, again
    assert_keyed(keyed_house, kept=operation == "secret-set")


@pytest.mark.chaos
@pytest.mark.parametrize("place", woven("secret-set", "secret-remove"))
def test_a_key_that_is_given_or_taken_away_half_way_is_finished(keyed_house: House, place: str) -> None:
    operation = place.partition("/")[0]
    prepare(keyed_house, operation)
    killed = kill_at(keyed_house, place, COMMANDS[operation])
    assert killed.status == -signal.SIGKILL, killed
    whole(keyed_house)
    other = keyed_house.troupe("stop", ID)
    assert other.status == 3, other
    assert f"troupe {shlex.join(COMMANDS[operation])}" in other.err, other
    again = keyed_house.troupe(*COMMANDS[operation], input=f"{KEY}\n")
    assert again.status == 0, again
    assert_keyed(keyed_house, kept=operation == "secret-set")


@pytest.mark.chaos
@pytest.mark.parametrize("operation", ["secret-set", "secret-remove"])
@pytest.mark.timeout(600)
def test_a_key_killed_again_and_again_is_finished(keyed_house: House, operation: str) -> None:
    count, ended = 1, kill_at(keyed_house, "calls/1", COMMANDS[operation])
    while ended.status == -signal.SIGKILL:
        whole(keyed_house)
        count += 1
        ended = kill_at(keyed_house, f"calls/{count}", COMMANDS[operation])
    assert ended.status == 0, ended
    assert_keyed(keyed_house, kept=operation == "secret-set")
