"""The backups of an agent on this machine: where they are, what room they may take, which were proved."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from troupe_tasks import config, durable, locks, strict
from troupe_tasks import record as records
from troupe_tasks.archives import disk
from troupe_tasks.archives.model import Archive
from troupe_tasks.archives.take import take
from troupe_tasks.errors import BackupDamaged, NotFound, OverBudget, StateUnreadable, UsageError
from troupe_tasks.host.disks import device, free_mib
from troupe_tasks.journal import Journal
from troupe_tasks.kits import pins
from troupe_tasks.kits.model import Kit
from troupe_tasks.operations.house import House
from troupe_tasks.record import Record
from troupe_tasks.sandbox import drivers
from troupe_tasks.sizes import parse_mib, show_mib
from troupe_tasks.text import line

_RESERVE_MIB = config.RESERVE_GIB * 1024
_NAME = re.compile(r"[0-9]{8}T[0-9]{6}Z-[a-z-]{1,20}(-[0-9]{1,3})?")
_STAMP = "%Y%m%dT%H%M%SZ"
DEADLINE_S = 6 * 3600.0
_PROOF = "proof.json"
# A tenth more than the sandbox says it holds; each archive is capped while it streams, whatever was said.
_MORE = 1.1
# A disk full of the smallest files has more headers than content.
_HEADERS_BYTES = 4 << 30


class Proof(BaseModel):
    """When a backup was put into a sandbox and found whole there."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    at: str


class Backup(BaseModel):
    """One backup, as it is listed."""

    model_config = ConfigDict(frozen=True)

    name: str
    bytes: int
    files: int
    proved: str | None


def new_name(house: House, agent_id: str, why: str) -> str:
    """Return a name that sorts after every one that there is, whatever the clock said then: names tell the age."""
    later = (_second_after(folder.name) for folder in _folders(house, agent_id))
    at = max([datetime.now(UTC), *filter(None, later)])
    return f"{at.strftime(_STAMP)}-{why}"


def _second_after(name: str) -> datetime | None:
    try:
        return datetime.strptime(name.partition("-")[0], _STAMP).replace(tzinfo=UTC) + timedelta(seconds=1)
    except (ValueError, OverflowError):  # what bears no date is no backup of ours
        return None


def place(house: House, agent_id: str, name: str) -> Path:
    """Return a backup's folder; raises UsageError for what is no backup's name."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{line(name, 60)!r} is no backup's name", hint=f"See `troupe backup list {agent_id}`."
        )
    return house.paths.backups(agent_id) / name


def archive(house: House, record: Record, sandbox: str, name: str, *, told: Callable[[str], None]) -> Archive:
    """Archive a running sandbox of the agent under a name; one that is there and whole is taken as it is."""
    folder = place(house, record.id, name)
    found = whole(house, record.id, name)
    if found is not None:
        return found
    discard(house, record.id, name)
    kit = pins.pinned(house.paths, record.kit.type, record.kit.version)
    return take(
        house.driver(record.driver), sandbox, folder, cap_bytes=_cap_bytes(record, kit), told=told,
        reserve=lambda: spare_mib(house, folder) << 20, deadline_s=DEADLINE_S, hermes=kit.commands.backup,
    )  # fmt: skip


def whole(house: House, agent_id: str, name: str) -> Archive | None:
    """Return what there is under a name, read from the disk and hashed, or None where it is not whole."""
    folder = place(house, agent_id, name)
    try:
        found = disk.load(folder)
        disk.rehash(folder, found)
    except BackupDamaged:
        return None
    return found


def discard(house: House, agent_id: str, name: str) -> None:
    """Remove an archive, and the proof of what was there before."""
    disk.discard(place(house, agent_id, name))
    durable.remove_tree(place(house, agent_id, name) / _PROOF)


def most_bytes(record: Record) -> int:
    """Return what an archive of all that an agent has may take at most."""
    return (record.sizes.storage_mib << 20) + _HEADERS_BYTES


def parts_bytes(kit: Kit, held_bytes: int) -> int:
    """Return what both parts may take: Hermes's own backup holds once more what the archive of everything holds."""
    return held_bytes * (2 if kit.commands.backup else 1)


def _cap_bytes(record: Record, kit: Kit) -> int:
    return parts_bytes(kit, most_bytes(record))


def disks(house: House, record: Record) -> Path:
    """Return the folder in which the disks of the agent's sandboxes grow."""
    return drivers.disks(record.driver, house.paths)


def spare_mib(house: House, place: Path) -> int:
    """Return what the disk that holds a place, or will hold it once it is made, may still take above the reserve."""
    free = free_mib(place)
    return 0 if free is None else max(0, free - reserve_mib(house))


def reserve_mib(house: House) -> int:
    """Return what is kept free while archives are written: the setting `reserve`, else 50 GiB."""
    given = config.read(house.paths).get("reserve")
    found = parse_mib(given, flag="reserve") if given else _RESERVE_MIB
    return found if isinstance(found, int) else _RESERVE_MIB


def refuse_without_room(house: House, record: Record, *, archive_bytes: int, sandbox_bytes: int) -> None:
    """Raise OverBudget when the disks can't hold the archive and another sandbox of such content above the reserve."""
    backups, sandboxes = house.paths.backups(record.id), disks(house, record)
    if archive_bytes and device(backups) == device(sandboxes):
        both = archive_bytes + sandbox_bytes
        _refuse_without_room(house, sandboxes, "its archive and a second sandbox", both)
        return
    _refuse_without_room(house, backups, "its archive", archive_bytes)
    _refuse_without_room(house, sandboxes, "a second sandbox", sandbox_bytes)


def _refuse_without_room(house: House, place: Path, what: str, taken_bytes: int) -> None:
    needed, spare = int(taken_bytes * _MORE) >> 20, spare_mib(house, place)
    if needed > spare:
        raise OverBudget(
            f"there is no room for {what}", cause=(
                f"that may take {show_mib(needed)}, and {show_mib(spare)} are free above the reserve of "
                f"{show_mib(reserve_mib(house))} on the disk of {place}"
            ), hint="Free some disk, or set a smaller reserve: `troupe config set reserve 10`.",
        )  # fmt: skip


def prove(house: House, agent_id: str, name: str) -> None:
    """Note that a backup was found whole in a sandbox just now."""
    proof = Proof(at=datetime.now(UTC).isoformat(timespec="seconds"))
    durable.write(place(house, agent_id, name) / _PROOF, proof.model_dump_json().encode())


def listed(house: House, agent_id: str) -> list[Backup]:
    """Return every whole backup of an agent, oldest first."""
    return [found for folder in _folders(house, agent_id) if (found := _backup(folder)) is not None]


def chosen(house: House, agent_id: str, name: str) -> Backup:
    """Return the backup of a name, or the newest; raises NotFound."""
    known = listed(house, agent_id)
    if name:
        place(house, agent_id, name)
        known = [found for found in known if found.name == name]
    if not known:
        raise NotFound(f"{agent_id} has no {'such ' if name else ''}backup",
                       hint=f"See `troupe backup list {agent_id}`.")  # fmt: skip
    return known[-1]


def newest_proved(house: House, agent_id: str) -> Backup | None:
    """Return the newest backup that was found whole in a sandbox, or None."""
    return next((found for found in reversed(listed(house, agent_id)) if found.proved), None)


def to_come_back_to(house: House, agent_id: str) -> Backup | None:
    """Return the newest backup that was proved, else the newest, but for what a restore replaced: that was no good."""
    known = [found for found in listed(house, agent_id) if "-restore" not in found.name]
    best = [found for found in known if found.proved] or known
    return best[-1] if best else None


def prune(house: House, agent_id: str, *, keep: int) -> list[str]:
    """Remove all but the newest backups and return the names of those that are gone.

    The last proved one stays, and the one that a restore would bring back.

    What a backup that was cut left behind goes as well. Raises Locked, Unfinished: one that is being written, or
    brought back, is in use.
    """
    records.load(house.paths, agent_id)
    with locks.agent(house.paths, agent_id):
        Journal(house.paths, agent_id).refuse_unfinished()
        return _pruned(house, agent_id, keep)


def _pruned(house: House, agent_id: str, keep: int) -> list[str]:
    known = [found.name for found in listed(house, agent_id)]
    always = filter(None, (newest_proved(house, agent_id), to_come_back_to(house, agent_id)))
    stay = {*known[-keep:], *(found.name for found in always)}
    gone = [folder.name for folder in _folders(house, agent_id) if folder.name not in stay]
    for name in gone:
        disk.discard(place(house, agent_id, name))  # what makes it a backup goes first
        durable.remove_tree(place(house, agent_id, name))
    return [name for name in gone if name in known]


def _folders(house: House, agent_id: str) -> list[Path]:
    place = house.paths.backups(agent_id)
    return (
        sorted(folder for folder in place.iterdir() if _NAME.fullmatch(folder.name)) if place.is_dir() else []
    )


def _backup(folder: Path) -> Backup | None:
    try:
        found = disk.load(folder)
    except BackupDamaged:
        return None
    try:
        path = folder / _PROOF
        proved: str | None = strict.parse(Proof, durable.read_private(path), place=path).at
    except (FileNotFoundError, StateUnreadable):  # a proof that does not read proves nothing
        proved = None
    return Backup(
        name=folder.name,
        bytes=sum(part.bytes for part in found.parts),
        files=found.manifest.files,
        proved=proved,
    )
