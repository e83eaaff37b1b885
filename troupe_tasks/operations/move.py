"""Move an agent, with everything it has, into a new sandbox: to other sizes, or to what a backup holds.

Its state and workspace are archived on this machine, never unpacked here, put into the new sandbox and compared
inside it by a manifest of hashes. The old sandbox goes only after the new one has answered, by the word of the
archive's receipt alone, and only once the archive was read from the disk again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pydantic import JsonValue

from troupe_tasks import journal, locks, sizes
from troupe_tasks import record as records
from troupe_tasks.archives import disk
from troupe_tasks.archives.put import keep, put
from troupe_tasks.errors import SandboxFailed, UsageError
from troupe_tasks.journal import Decided, Journal, Step
from troupe_tasks.kits import pins
from troupe_tasks.operations import leaving, moving, outfit, reset, room, vault
from troupe_tasks.operations.house import House
from troupe_tasks.operations.moving import Done
from troupe_tasks.record import Record, SelfTest, Sizes
from troupe_tasks.sandbox.protocol import State
from troupe_tasks.sizes import show_mib
from troupe_tasks.text import line

_SYNC_S = 600.0


@dataclass(frozen=True)
class Job(moving.Job):
    """A move under way; backup is what a restore brings back, empty for a move that keeps what there is."""

    backup: str = ""
    why: str = "move"
    """What its archive is named after."""


def look(job: Job, done: Done) -> Decided:
    """Check sizes, keys, budget and the room for the archive, before anything is stopped."""
    record = job.record()
    if job.sizes.storage_mib < record.sizes.storage_mib:
        raise UsageError(
            f"its disk has {show_mib(record.sizes.storage_mib)}, and a disk only grows",
            hint="Ask for as much, or more.",
        )
    reset.refuse_bad_keys(job)
    moving.refuse_over_budget(job)
    held_bytes, why = _held_bytes(job, record)
    brought = vault.chosen(job.house, job.id, job.backup).bytes if job.backup else held_bytes or 0
    # What a restore archives is proved in a sandbox of its own beside the new one.
    proved = held_bytes or 0 if job.backup else 0
    vault.refuse_without_room(
        job.house,
        record,
        archive_bytes=vault.parts_bytes(job.kit, held_bytes or 0),
        sandbox_bytes=brought + proved,
    )
    if held_bytes is None:
        return {"archive": None, "why": why}
    return {"archive": vault.new_name(job.house, job.id, job.why)}


def _held_bytes(job: Job, record: Record) -> tuple[int | None, str]:
    """Return what it has now; or None and why, where a restore does without: its sandbox is of no use any more."""
    if not job.backup:
        return moving.held_bytes(
            job.house, record
        ), ""  # which says what is wrong with one that does not start
    if not moving.usable(job.house, record):
        return None, "its sandbox is gone, or not whole"
    try:
        return moving.held_bytes(job.house, record), ""
    except SandboxFailed as error:
        return None, line(str(error), 400)


@moving.or_back
def archive(job: Job, done: Done) -> Decided:
    """Archive what it has; the gateway is gone, the sandbox runs. A restore goes on where that can't be done."""
    try:
        return {"archive": _archived(job, done)}
    except SandboxFailed as error:
        if not job.backup:
            raise
        return {"archive": None, "why": line(str(error), 400)}


def _archived(job: Job, done: Done) -> JsonValue:
    name = done["look"]["archive"]
    if not isinstance(name, str):  # a restore: there was no usable sandbox to archive
        return None
    record, old = job.record(), job.old(done)
    driver = job.house.driver(record.driver)
    info = driver.list().find(old)
    found = vault.whole(job.house, job.id, name) if info and info.state is State.STOPPED else None
    if found is None:  # or what was archived is older than what somebody may have done in there since
        vault.discard(job.house, job.id, name)
        driver.start(old)
        found = vault.archive(job.house, record, old, name, told=job.told)
        driver.stop(old, deadline_s=moving.STOP_S)  # so that this is all there will ever be in it
    return found.model_dump(mode="json")


@moving.or_back
def restore(job: Job, done: Done) -> Decided:
    """Put the archive into the new sandbox, and compare inside."""
    name = job.backup or str(done["look"]["archive"])
    folder = vault.place(job.house, job.id, name)
    record = job.record()
    driver = job.house.driver(record.driver)
    driver.start(job.new(done))
    found = put(
        driver, job.new(done), folder, disk.load(folder), deadline_s=vault.DEADLINE_S,
        reserve=lambda: vault.spare_mib(job.house, vault.disks(job.house, record)) << 20,
    )  # fmt: skip
    keep(driver, job.new(done), deadline_s=_SYNC_S)  # before a receipt says that it is there
    vault.prove(job.house, job.id, name)
    return {"manifest": found.digest}


@moving.or_back
def settle(job: Job, done: Done) -> Decided:
    """Bring the stand-ins that it was archived with in line with those that it has now."""
    outfit.settle(job.house, job.moved(done), job.kit)
    return {}


STEPS: tuple[Step[Job], ...] = (
    Step("look", look, "checking that it can be done", only_looks=True),
    Step("image", moving.have_image, "getting the kit's image", only_looks=True),
    Step("plan", moving.plan, "reserving room", only_looks=True),
    Step("quiesce", moving.quiesce, "letting current work finish"),
    Step("archive", archive, "archiving what it has"),
    Step("stop-old", moving.stop_old, "stopping the old sandbox"),
    Step("make", moving.make, "making a new sandbox"),
    Step("restore", restore, "putting everything into it"),
    Step("settle", settle, "bringing its stand-ins in line"),
    Step("test", moving.test, "sending it a first message"),
    Step("switch", moving.switch, "recording where it lives"),
    Step("go-on", moving.go_on, "starting the gateway"),
    Step("recheck", leaving.recheck, "reading its archive once more"),
    Step("leave", leaving.leave, "removing the sandbox that it left"),
)


def resize(
    house: House, agent_id: str, wanted: sizes.Wanted, *, finish: str, over_budget: bool, told: Callable[[str], None]
) -> tuple[Record, SelfTest]:  # fmt: skip
    """Move an agent into a new sandbox of other sizes, or go on with it. Raises MoveFailed when it went back."""
    asked = room.named(wanted)
    with locks.agent(house.paths, agent_id):  # what it has now is what it moves with
        record = records.load(house.paths, agent_id)
        Journal(house.paths, agent_id).refuse_others("resize")
        given = settled(house, agent_id, wanted)
        job = _job(house, record, given, over_budget=over_budget, told=told)
        return _perform(job, "resize", inputs=asked, finish=finish)


def settled(house: House, agent_id: str, wanted: sizes.Wanted) -> Sizes:
    """Return the sizes of the new sandbox; a move that has begun goes on with those that it began with."""
    return moving.planned_sizes(house, agent_id, "resize") or room.settled(house, agent_id, wanted)


def restored(
    house: House, agent_id: str, name: str, *, over_budget: bool, told: Callable[[str], None]
) -> tuple[Record, SelfTest]:
    """Move an agent into a new sandbox with what a backup holds; what it has now is archived as well."""
    finish = f"troupe restore {agent_id} {name} --yes"
    with locks.agent(house.paths, agent_id):
        record = records.load(house.paths, agent_id)
        Journal(house.paths, agent_id).refuse_others("restore")
        job = _job(house, record, record.sizes, over_budget=over_budget, told=told, backup=name)
        return _perform(job, "restore", inputs={"backup": name}, finish=finish)


def to_restore(house: House, agent_id: str, name: str) -> str:
    """Return the name of the backup that a restore brings back; its files are read and found whole.

    Without a name it is the newest that was proved, but for what another restore replaced: nobody would have replaced a
    good state. A restore that has begun goes on with its own.
    """
    begun = Journal(house.paths, agent_id).unfinished()
    goes_on = begun is not None and begun.operation == "restore" and not begun.only_looked
    if begun is not None and goes_on and name in ("", begun.inputs["backup"]):
        return str(begun.inputs["backup"])
    records.load(house.paths, agent_id)
    usual = vault.to_come_back_to(house, agent_id) if not name else None
    found = (usual or vault.chosen(house, agent_id, name)).name
    folder = vault.place(house, agent_id, found)
    disk.rehash(folder, disk.load(folder))
    return found


def _job(
    house: House, record: Record, given: Sizes, *, over_budget: bool, told: Callable[[str], None], backup: str = ""
) -> Job:  # fmt: skip
    kit = pins.pinned(house.paths, record.kit.type, record.kit.version)
    return Job(
        house, record.id, kit, given, digest=record.kit.digest, over_budget=over_budget, told=told, backup=backup,
        why="restore" if backup else "move",
    )  # fmt: skip


def _perform(job: Job, operation: str, *, inputs: Decided, finish: str) -> tuple[Record, SelfTest]:
    book, opened = moving.begin(job.house, job.id, operation, inputs=inputs, finish=finish, steps=STEPS)
    job = replace(job, resumed=bool(opened.done))
    done = journal.perform(book, opened, job, STEPS, told=lambda step: job.told(step.doing))
    return job.record(), moving.result_of(done)
