"""Check an agent's sizes against the machine, counting every sandbox, and settle `max`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from troupe_tasks import budget, sizes
from troupe_tasks import record as records
from troupe_tasks.errors import UsageError
from troupe_tasks.host.cpu import usable_threads
from troupe_tasks.host.disks import device, free_mib
from troupe_tasks.host.memory import total_mib
from troupe_tasks.host.processes import resident_mib
from troupe_tasks.kits.model import DefaultSizes, Kit
from troupe_tasks.operations.house import House, Unseen
from troupe_tasks.record import Record, Sizes, agent_of
from troupe_tasks.sandbox import drivers
from troupe_tasks.sandbox.protocol import Listing, Sandboxes, SandboxInfo, State

# Docker's sandbox daemon, whoever started it: its unit, a person, or sbx itself.
_DAEMON: Final = ("sbx", "daemon", "start")


def host(house: House, driver: str) -> budget.Host:
    """Return what this machine has for an agent of a driver."""
    return budget.Host(
        cpu_threads=usable_threads(), memory_mib=total_mib(),
        disk_free_mib=free_mib(drivers.disks(driver, house.paths)),
        daemon_mib=resident_mib(*_DAEMON) if drivers.present("sbx") else 0,
    )  # fmt: skip


def others(
    house: House, agent_id: str, listings: Mapping[str, Listing] | None = None
) -> list[budget.Running]:
    """Return every sandbox but one agent's own, and what other operations have reserved without one yet.

    Of another driver that does not answer its agents are counted by their records; of the agent's own, what it ran
    into is raised. listings are the house's, where they were asked for already.
    """
    listings = house.listings() if listings is None else listings
    own = listings.get(_driver(house, agent_id))
    if isinstance(own, Unseen):
        raise own.error
    recorded = {record.id: record for record in house.records() if record.id != agent_id}
    moving = {record.id for record in recorded.values() if record.moving_to is not None}
    settled = [
        (house.driver(name), info)
        for name, listing in listings.items()
        for info in listing.sandboxes
        if info.id is None or agent_of(info.id) not in {agent_id, *moving}
    ]
    running = [_running(driver, info, recorded.get(agent_of(info.id or ""))) for driver, info in settled]
    seen = {agent_of(info.id) for _, info in settled if info.id}
    return [*running, *(_reserved(record) for record in recorded.values() if record.id not in seen)]


def _running(driver: Sandboxes, info: SandboxInfo, record: Record | None) -> budget.Running:
    wanted = record is not None and record.wanted == "up" and record.sandbox == info.id
    growth = None
    sizes = info.sizes or (record.sizes if record else None)  # of one whose own file does not read
    if info.id is not None and info.sizes is not None:
        used_mib = driver.disk_used_mib(info.id, may_ask=False)
        growth = max(0, info.sizes.disk_mib - used_mib)
    return budget.Running(
        id=info.id, name=record.name if record else info.name, driver=driver.name,
        up=wanted or info.state is State.RUNNING or info.takes_room, cpus=sizes.cpus if sizes else None,
        memory_mib=sizes.memory_mib if sizes else None,
        disk_growth_mib=growth,
    )  # fmt: skip


def _reserved(record: Record) -> budget.Running:
    """Count an agent without a sandbox yet, or one that moves into another: as large as either, once."""
    kept = record.reserved
    return budget.Running(
        id=record.id, name=record.name, driver=record.driver,
        up=record.wanted == "up" or record.moving_to is not None, cpus=kept.cpus, memory_mib=kept.memory_mib,
        disk_growth_mib=kept.disk_mib,
    )  # fmt: skip


def _on_its_disk(house: House, driver: str, found: Iterable[budget.Running]) -> list[budget.Running]:
    """Return the others, those whose disks lie on another filesystem than this driver's as growing by nothing."""
    devices = {name: device(drivers.disks(name, house.paths)) for name in drivers.NAMES}
    return [
        other if devices.get(other.driver) == devices.get(driver) else replace(other, disk_growth_mib=0)
        for other in found
    ]


def _need(driver: str, wanted: Sizes, *, grown_mib: int = 0) -> budget.Need:
    return budget.Need(
        driver=driver, cpus=wanted.cpus, memory_mib=wanted.memory_mib,
        disk_growth_mib=max(0, wanted.disk_mib - grown_mib),
    )  # fmt: skip


def _driver(house: House, agent_id: str) -> str:
    """Return the name of an agent's driver, or of the one that it will have."""
    record = records.find(house.paths, agent_id)
    return house.chosen if record is None else record.driver


def wanted(
    driver: str, kit: Kit, before: Sizes | DefaultSizes, typed: Mapping[str, sizes.Amount]
) -> sizes.Wanted:
    """Return what is asked for: what was typed, else as before. Raises UsageError for a disk that the driver lacks."""
    docker = drivers.has_docker_disk(driver)
    if "docker_mib" in typed and not docker:
        raise UsageError(
            "there is no disk for Docker", cause=f"the driver {driver} makes one disk for all that an agent has",
            hint="Leave --docker out, and give --storage.",
        )  # fmt: skip
    asked: dict[str, sizes.Amount] = {**before.model_dump(), **({} if docker else {"docker_mib": 0}), **typed}
    return sizes.Wanted(**asked, ratio=(kit.sizes.storage_mib, kit.sizes.docker_mib))


def named(asked: sizes.Wanted) -> dict[str, str]:
    """Return what was asked for as the receipts of an operation tell it."""
    names = ("cpus", "memory_mib", "storage_mib", *(("docker_mib",) if asked.docker_mib else ()))
    return {name: str(getattr(asked, name)) for name in names}


def settled(house: House, agent_id: str, asked: sizes.Wanted) -> Sizes:
    """Return what was asked for, each `max` a number. Raises Refused for sizes that its driver does not make."""
    driver = _driver(house, agent_id)
    most = sizes.Room(None, None, None)
    if sizes.Max.MAX in (asked.cpus, asked.memory_mib, asked.storage_mib, asked.docker_mib):
        most = _most(house, agent_id, driver)
    found = sizes.settle(asked, room=most)
    drivers.refuse_sizes(driver, memory_mib=found.memory_mib, docker_mib=found.docker_mib)
    return Sizes(
        cpus=found.cpus, memory_mib=found.memory_mib, storage_mib=found.storage_mib, docker_mib=found.docker_mib
    )  # fmt: skip


def _most(house: House, agent_id: str, driver: str) -> sizes.Room:
    """Return the most that this machine, and the agent's driver, can give it."""
    there = host(house, driver)
    most = budget.room(there, driver=driver, others=_on_its_disk(house, driver, others(house, agent_id)))
    if most.memory_mib is None or there.memory_mib is None:
        return most
    given = drivers.most_memory_mib(driver, there.memory_mib)
    return replace(most, memory_mib=min(most.memory_mib, given))


def verdict(
    house: House,
    agent_id: str,
    wanted: Sizes,
    *,
    grown_mib: int = 0,
    listings: Mapping[str, Listing] | None = None,
) -> budget.Verdict:
    """Return whether an agent of these sizes fits; grown_mib is what its disk holds already."""
    driver = _driver(house, agent_id)
    beside = _on_its_disk(house, driver, others(house, agent_id, listings))
    return budget.check(host(house, driver), _need(driver, wanted, grown_mib=grown_mib), others=beside)


def verdict_beside(house: House, agent_id: str, wanted: Sizes) -> budget.Verdict:
    """Return whether a second sandbox of these sizes fits beside the agent's own, which goes on."""
    record = records.load(house.paths, agent_id)
    beside = _on_its_disk(house, record.driver, [*others(house, agent_id), _reserved(record)])
    return budget.check(host(house, record.driver), _need(record.driver, wanted), others=beside)
