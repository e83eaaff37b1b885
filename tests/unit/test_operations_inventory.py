"""A list tells what is unfinished without reading the receipts of agents at rest."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from troupe_tasks import record as records
from troupe_tasks.errors import Tampered
from troupe_tasks.journal import END, Journal
from troupe_tasks.operations import inventory
from troupe_tasks.operations.house import House
from troupe_tasks.paths import Paths
from troupe_tasks.record import KitPin, Record, Sizes
from troupe_tasks.sandbox.protocol import Listing, SandboxInfo, State
from troupe_tasks.services.protocol import Phase, ServiceState

ID = "jane"
EMPTY = Listing(complete=True, sandboxes=())


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    def nothing(_house: House, _agents: object = None) -> dict[str, Listing]:
        return {"capsule": EMPTY}

    monkeypatch.setattr(House, "listings", nothing)
    found = House(Paths.from_env())
    records.save(found.paths, Record(
        id=ID, name="Jane", kit=KitPin(type="hermes", version="0.1.0"), driver="capsule", isolation="gvisor",
        rehearsal=True, key_tier="none", sizes=Sizes(cpus=1, memory_mib=512, storage_mib=512), created_at="now",
    ))  # fmt: skip
    return found


def begun(house: House) -> Journal:
    book = Journal(house.paths, ID)
    book.open("create", inputs={}, finish="troupe create it")
    book.write("create", "reserve", {})
    return book


def standing(house: House, *, thorough: bool) -> inventory.Agent:
    services: Mapping[str, ServiceState] = {}
    return inventory._agent(house, records.load(house.paths, ID), EMPTY, dict(services), thorough=thorough)


def test_an_unfinished_create_is_listed_with_what_finishes_it(house: House) -> None:
    begun(house)
    assert inventory.agents(house)[0].unfinished == inventory.Unfinished(
        operation="create", finish="troupe create it"
    )


def test_an_agent_at_rest_has_nothing_unfinished_and_its_receipts_are_not_read(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(house).write("create", END, {})

    def refuse(*_words: object) -> Journal:
        raise AssertionError("it read the receipts")

    monkeypatch.setattr(inventory, "Journal", refuse)
    assert inventory.agents(house)[0].unfinished is None


def test_a_failed_gateway_is_told_with_since_when_and_why(house: House) -> None:
    gateway = ServiceState(Phase.FAILED, since=86_400.0, why="it ended too quickly too often")
    told = "failed since 1970-01-02T00:00:00+00:00: it ended too quickly too often"
    assert inventory._gateway(gateway) == told
    record = records.load(house.paths, ID)
    here = SandboxInfo(
        name=ID, id=ID, identity="1", state=State.RUNNING, sizes=None, isolation=None, started_at=None
    )
    standing, why = inventory._standing(record, here, EMPTY, gateway)
    assert (standing, why) == ("failed", f"the gateway has {told}")


def test_the_status_of_one_agent_still_checks_every_receipt(house: House) -> None:
    begun(house).write("create", END, {})
    first = min(house.paths.receipts(ID).iterdir())
    first.write_bytes(first.read_bytes().replace(b"reserve", b"another"))
    first.write_bytes(first.read_bytes().replace(b"create it", b"create no"))
    with pytest.raises(Tampered):
        Journal(house.paths, ID)
    assert standing(house, thorough=False).why != standing(house, thorough=True).why
