"""What there is: every agent and every sandbox, from one listing of the runtime and one of the services."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

from troupe_tasks import record as records
from troupe_tasks.errors import StateUnreadable, Tampered
from troupe_tasks.journal import ABANDONED, BEGIN, END, Journal
from troupe_tasks.operations import room, vault, wiring
from troupe_tasks.operations.house import House, Unseen, gateway_name
from troupe_tasks.record import Record, SelfTest, Sizes, Unreadable
from troupe_tasks.sandbox.protocol import LimitReport, Listing, SandboxInfo, State
from troupe_tasks.services.protocol import Phase, ServiceState

Standing = Literal[
    "running", "starting", "stopped", "failed", "broken", "missing", "unknown", "unreadable", "not ours"
]


class Unfinished(BaseModel):
    """An interrupted operation, and the command that finishes it."""

    model_config = ConfigDict(frozen=True)

    operation: str
    finish: str


class Agent(BaseModel):
    """One line of `list`: an agent, or a sandbox that is not troupe's (then kit and sizes may be unknown).

    Of an agent whose record does not read all is unknown but its ID and what its driver tells of its sandbox.
    """

    model_config = ConfigDict(frozen=True)

    id: str | None
    name: str
    state: Standing
    why: str = ""
    kit: str = ""
    version: str = ""
    sizes: Sizes | None = None
    driver: str
    isolation: str = ""
    key_tier: str = ""
    up_seconds: int | None = None
    unfinished: Unfinished | None = None


class Full(BaseModel):
    """All of `status`."""

    model_config = ConfigDict(frozen=True)

    agent: Agent
    record: Record
    gateway: str
    gateway_pid: int | None
    budget: tuple[str, ...]
    limits: tuple[LimitReport, ...]
    disk_used_mib: int | None
    self_test: SelfTest | None
    egress: tuple[str, ...]
    backups: int
    last_proved_restore: str | None


def agents(house: House) -> list[Agent]:
    """Return every agent, then every sandbox that is not troupe's."""
    recorded, unreadable = records.load_all(house.paths)
    listings = house.listings(recorded)
    services = house.services.states()
    known = {*(record.id for record in recorded), *(one.id for one in unreadable)}
    return [
        *(_agent(house, one, listings[one.driver], services, thorough=False) for one in recorded),
        *(_unreadable(house, one, listings) for one in unreadable),
        *(
            _stranger(driver, info)
            for driver, listing in listings.items()
            for info in listing.sandboxes
            if info.id is None or records.agent_of(info.id) not in known
        ),
    ]


def full(house: House, agent_id: str) -> Full:
    """Return everything that is known of one agent."""
    record = records.load(house.paths, agent_id)
    driver, listings = house.driver(record.driver), house.listings()
    services = house.services.states()
    agent = _agent(house, record, listings[record.driver], services, thorough=True)
    gateway = services.get(gateway_name(agent_id))
    there = agent.state not in ("missing", "unknown")
    used = driver.disk_used_mib(record.sandbox) if there else None
    backups = vault.listed(house, agent_id)
    return Full(
        agent=agent, record=record, gateway=_gateway(gateway), gateway_pid=gateway.pid if gateway else None,
        budget=_budget(house, record, used, listings), limits=driver.limits(), disk_used_mib=used,
        self_test=records.last_self_test(house.paths, agent_id), egress=wiring.reachable(house, agent_id).rules,
        backups=len(backups), last_proved_restore=max((one.proved for one in backups if one.proved), default=None),
    )  # fmt: skip


def _budget(
    house: House, record: Record, used_mib: int | None, listings: dict[str, Listing]
) -> tuple[str, ...]:
    """Return the budget's lines; nothing is known where the agent's own runtime does not answer."""
    if isinstance(listings[record.driver], Unseen):
        return (f"not known: the runtime of {record.driver} does not answer",)
    found = room.verdict(house, record.id, record.sizes, grown_mib=used_mib or 0, listings=listings)
    return tuple(line.show() for line in found.lines)


def _gateway(gateway: ServiceState | None) -> str:
    if gateway is None:
        return "not among the services"
    why = f": {gateway.why}" if gateway.phase is Phase.FAILED and gateway.why else ""
    return f"{gateway.phase} since {_when(gateway)}{why}"


def pending(house: House, agent_id: str) -> Unfinished | None:
    """Return an agent's interrupted operation, if there is one; every receipt is read and checked."""
    opened = Journal(house.paths, agent_id).unfinished()
    return Unfinished(operation=opened.operation, finish=opened.finish) if opened else None


def afterwards(house: House, agent_id: str) -> list[str]:
    """Return what a person has to know of the last operation on an agent: what it cut, left, or did not archive."""
    told: list[str] = []
    for receipt in reversed(Journal(house.paths, agent_id).receipts):
        decided = receipt.decided
        if receipt.step == BEGIN:
            break
        if decided.get("cut") is True:
            told.append("its work did not end in time and was cut")
        if "left" in decided:
            told.append(
                f"the sandbox {decided['left']} is left alone: {decided.get('why')}; "
                f"`troupe delete {agent_id}` takes it away with the agent"
            )
        elif "why" in decided and receipt.step in ("look", "archive"):
            told.append(f"what it had was not archived: {decided['why']}")
    return told[::-1]


def _settled(house: House, agent_id: str) -> bool:
    """Tell by the name of an agent's last receipt alone that nothing is unfinished."""
    folder = house.paths.receipts(agent_id)
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    last = max((name for name in names if not name.startswith(".")), default=f"-{END}.json")
    return last.endswith((f"-{END}.json", f"-{ABANDONED}.json"))


def _agent(
    house: House, record: Record, listing: Listing, services: dict[str, ServiceState], *, thorough: bool
) -> Agent:
    info = listing.find(record.sandbox)
    state, why = _standing(record, info, listing, services.get(gateway_name(record.id)))
    unfinished, damage = _unfinished(house, record.id, thorough=thorough)
    why = damage or why
    if unfinished is not None and state == "stopped":
        why = ""  # what finishes it is shown, and nothing else would be let through
    return Agent(
        id=record.id, name=record.name, state=state, why=why, kit=record.kit.type, version=record.kit.version,
        sizes=record.sizes, driver=record.driver, isolation=record.isolation, key_tier=record.key_tier,
        up_seconds=_up(info) if state == "running" else None, unfinished=unfinished,
    )  # fmt: skip


def _unfinished(house: House, agent_id: str, *, thorough: bool) -> tuple[Unfinished | None, str]:
    """Return an agent's interrupted operation, or what is wrong with its receipts."""
    try:
        # A list reads no receipts of agents at rest: with many agents that would be most of its time.
        rest = not thorough and _settled(house, agent_id)
        return None if rest else pending(house, agent_id), ""
    except (Tampered, StateUnreadable) as error:
        return None, str(error)


def _unreadable(house: House, one: Unreadable, listings: dict[str, Listing]) -> Agent:
    seen = [
        (driver, info)
        for driver, listing in listings.items()
        for info in listing.sandboxes
        if info.id is not None and records.agent_of(info.id) == one.id
    ]
    driver, info = max(seen, key=lambda pair: records.move_of(pair[1].id or ""), default=("", None))
    unfinished, _ = _unfinished(house, one.id, thorough=False)
    return Agent(
        id=one.id, name="", state="unreadable", why=f"{one.error}. {one.error.hint}", driver=driver,
        sizes=_sizes(info), isolation=_isolation(info), unfinished=unfinished,
    )  # fmt: skip


def _standing(
    record: Record, info: SandboxInfo | None, listing: Listing, gateway: ServiceState | None
) -> tuple[Standing, str]:
    if isinstance(listing, Unseen):
        return "unknown", str(listing.error)
    if info is None:
        return (
            ("missing", "recorded, but not listed")
            if listing.complete
            else ("unknown", "the listing is incomplete")
        )
    if info.state is State.MISSING:
        return "missing", "recorded, but not listed"
    if info.state is State.BROKEN:
        return "broken", "its sandbox is not whole"
    phase = gateway.phase if gateway else Phase.STOPPED
    if gateway and phase is Phase.FAILED:
        return (
            "failed",
            f"the gateway has failed since {_when(gateway)}: {gateway.why or 'it ended too often'}",
        )
    if phase is Phase.RUNNING and info.state is State.RUNNING:
        return "running", ""
    if record.wanted == "up" and phase.up:
        return "starting", ""
    return "stopped", "" if record.wanted == "down" else "`troupe start` brings it back"


def _when(gateway: ServiceState | None) -> str:
    if gateway is None or gateway.since is None:
        return "an unknown time"
    return datetime.fromtimestamp(gateway.since, UTC).isoformat(timespec="seconds")


def _up(info: SandboxInfo | None) -> int | None:
    if info is None or info.started_at is None:
        return None
    return max(0, int((datetime.now(UTC) - info.started_at).total_seconds()))


def _stranger(driver: str, info: SandboxInfo) -> Agent:
    return Agent(
        id=None, name=info.name, state="not ours", why=info.state.value, sizes=_sizes(info), driver=driver,
        isolation=_isolation(info),
    )  # fmt: skip


def _isolation(info: SandboxInfo | None) -> str:
    return info.isolation.value if info and info.isolation else ""


def _sizes(info: SandboxInfo | None) -> Sizes | None:
    if info is None or info.sizes is None:
        return None
    return Sizes(
        cpus=info.sizes.cpus, memory_mib=info.sizes.memory_mib, storage_mib=info.sizes.storage_mib,
        docker_mib=info.sizes.docker_mib,
    )  # fmt: skip
