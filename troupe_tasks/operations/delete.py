"""Delete an agent: everything of it on this machine, whatever state it is in."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from troupe_tasks import durable, journal, locks
from troupe_tasks import record as records
from troupe_tasks.egress import policy
from troupe_tasks.errors import DiskFull, EgressFailed, FolderUnusable, NotFound, StateUnreadable, Tampered
from troupe_tasks.journal import BEGIN, Decided, Journal, Step
from troupe_tasks.keystore.store import Keystore
from troupe_tasks.operations.house import House, gateway_name
from troupe_tasks.paths import Paths
from troupe_tasks.record import Record
from troupe_tasks.sandbox import drivers
from troupe_tasks.sandbox.protocol import Sandboxes

Done = Mapping[str, Decided]


@dataclass(frozen=True)
class Job:
    """A delete under way."""

    house: House
    id: str


def stop_gateway(job: Job, done: Done) -> Decided:
    """Take the gateway out of the services."""
    job.house.services.remove(gateway_name(job.id))
    return {}


def remove_sandbox(job: Job, done: Done) -> Decided:
    """Remove the sandbox with everything in it, and what a move that was cut left of another."""
    _remove_sandboxes(job.house, job.id)
    return {}


def _remove_sandboxes(house: House, agent_id: str) -> None:
    record = _record(house.paths, agent_id)
    for driver in _drivers(house, agent_id, record):
        listed = {info.id for info in driver.list().sandboxes if info.id}
        found = {sandbox for sandbox in listed if records.agent_of(sandbox) == agent_id}
        for sandbox in sorted(found | _maybe_half_made(agent_id, record, found)):
            driver.remove(sandbox)


def _record(paths: Paths, agent_id: str) -> Record | None:
    """Return the agent's record, or None when it is gone already or does not read."""
    try:
        return records.find(paths, agent_id)
    except StateUnreadable:
        return None


def _drivers(house: House, agent_id: str, record: Record | None) -> Iterable[Sandboxes]:
    """Return the agent's driver, or without a record every one that may have it."""
    if record is not None:
        return (house.driver(record.driver),)
    return tuple(
        house.driver(name) for name in drivers.NAMES if drivers.may_have(name, house.paths, agent_id)
    )


def _maybe_half_made(agent_id: str, record: Record | None, found: Iterable[str]) -> set[str]:
    """Return the sandboxes that a create or a move may have been making: half made, none is listed."""
    move = record.move if record else max(map(records.move_of, found), default=0)
    return {agent_id, records.sandbox_of(agent_id, move), records.sandbox_of(agent_id, move + 1)}


def close_egress(job: Job, done: Done) -> Decided:
    """Take away its way out; a broker that is down takes that up when it starts."""
    policy.remove(job.house.paths, job.id)
    try:
        job.house.broker.reload()
    except EgressFailed:
        return {"broker": "was down"}
    return {}


def destroy_keys(job: Job, done: Done) -> Decided:
    """Destroy its keys; the broker, which has let go of the agent, holds none."""
    Keystore(job.house.paths, job.id).destroy()
    return {}


def remove_files(job: Job, done: Done) -> Decided:
    """Remove its backups, logs and environment; the record goes last, so that a list shows it until then."""
    durable.remove_tree(job.house.paths.backups(job.id))
    durable.remove_tree(job.house.paths.live_apply(job.id))
    durable.remove_tree(job.house.paths.logs(job.id))
    durable.remove_tree(job.house.paths.agent(job.id))
    return {}


STEPS: tuple[Step[Job], ...] = (
    Step("gateway", stop_gateway, "stopping the gateway"),
    Step("sandbox", remove_sandbox, "removing the sandbox"),
    Step("egress", close_egress, "closing its way out"),
    Step("keys", destroy_keys, "destroying its keys"),
    Step("files", remove_files, "removing its files"),
)


def known(paths: Paths, agent_id: str) -> bool:
    """Tell whether there is anything of an agent for delete to remove: a record, receipts, or their remains."""
    places = (paths.record(agent_id), paths.receipts(agent_id), _leftover(paths, agent_id))
    return any(os.path.lexists(place) for place in places)  # a record may be a link that leads nowhere


def delete(house: House, agent_id: str, *, told: Callable[[str], None]) -> tuple[str, ...]:
    """Delete an agent, or finish deleting it, and return the services whose keys are to be revoked.

    The receipts go last, in one rename: until then they say which keys there were.
    """
    paths = house.paths
    if not known(paths, agent_id):
        raise NotFound(f"there is no agent {agent_id}")
    with locks.agent(paths, agent_id):
        _refuse_links(house, agent_id)
        revoke: tuple[str, ...] = ()
        if paths.receipts(agent_id).exists() or os.path.lexists(paths.record(agent_id)):
            book = _book(paths, agent_id)
            revoke = _to_revoke(paths, agent_id, book)
            try:
                _journaled(house, agent_id, book, revoke, told=told)
            except DiskFull:
                _make_room(house, agent_id)
                _unrecorded(house, agent_id, told=told)
        with locks.machine(paths):
            if not any(records.load_all(house.paths)):  # a create that has begun has its record
                house.services.shutdown()
        if paths.receipts(agent_id).exists():
            # Of an earlier agent, whose delete was killed here.
            durable.remove_tree(_leftover(paths, agent_id))
            durable.rename(paths.receipts(agent_id), _leftover(paths, agent_id))
        durable.remove_tree(_leftover(paths, agent_id))
        locks.forget(paths, agent_id)
        return revoke


def _refuse_links(house: House, agent_id: str) -> None:
    """Refuse an agent with a folder that is a link: that alone would be removed, and what it leads to would stay."""
    paths = house.paths
    many = [paths.backups(agent_id), paths.live_apply(agent_id)]
    places = [
        *many, *(entry for folder in many for entry in _entries(folder)),
        paths.agent(agent_id), paths.receipts(agent_id), paths.keys(agent_id), paths.logs(agent_id),
        paths.egress(agent_id), *map(paths.sandbox, sorted(_maybe_half_made(agent_id, _record(paths, agent_id), ()))),
    ]  # fmt: skip
    for link in filter(None, map(durable.find_link, places)):
        raise FolderUnusable(
            f"{link} is a link, and what it leads to would not be deleted", cause="troupe follows none",
            hint="Remove what it leads to yourself, or move it back in place of the link; then remove the link.",
        )  # fmt: skip


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # none, or closed: a removal opens it, and tells what it can't remove
        return []


def _to_revoke(paths: Paths, agent_id: str, book: Journal) -> tuple[str, ...]:
    """Return the services that it has keys for, or had when a delete began that was interrupted since."""
    begun = next((receipt for receipt in reversed(book.receipts) if receipt.step == BEGIN), None)
    inputs = begun.decided.get("inputs") if begun is not None and begun.operation == "delete" else None
    had = inputs.get("services") if isinstance(inputs, dict) else None
    there = Keystore(paths, agent_id).named()
    return tuple(sorted({*there, *(str(one) for one in (had if isinstance(had, list) else []))}))


def _journaled(
    house: House, agent_id: str, book: Journal, services: Sequence[str], *, told: Callable[[str], None]
) -> None:
    finish = f"troupe delete {agent_id}"
    opened = book.open("delete", inputs={"services": list(services)}, finish=finish, supersedes=True)
    journal.perform(book, opened, Job(house, agent_id), STEPS, told=lambda step: told(step.doing))


def _make_room(house: House, agent_id: str) -> None:
    """Free what the agent takes, on a disk too full for a receipt: the gateway first, for it starts the sandbox."""
    with contextlib.suppress(DiskFull):
        house.services.stop((gateway_name(agent_id),))
    _remove_sandboxes(house, agent_id)
    durable.remove_tree(house.paths.logs(agent_id))


def _unrecorded(house: House, agent_id: str, *, told: Callable[[str], None]) -> None:
    """Delete without receipts: each step is safe to run twice, and none needs what another decided."""
    for step in STEPS:
        told(step.doing)
        step.do(Job(house, agent_id), {})


def _book(paths: Paths, agent_id: str) -> Journal:
    try:
        return Journal(paths, agent_id)
    except (Tampered, StateUnreadable):
        # Nothing can go on from altered receipts, and a delete needs none of what they say.
        durable.remove_tree(paths.receipts(agent_id))
        return Journal(paths, agent_id)


def _leftover(paths: Paths, agent_id: str) -> Path:
    place = paths.receipts(agent_id)
    return place.with_name(f".{place.name}.deleted")
