"""Back an agent up while it goes on: a pause for the archive, then a proof that the archive can be restored.

The proof is a restore into a sandbox beside the agent's own, compared inside by a manifest of hashes, and removed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from troupe_tasks import journal, locks
from troupe_tasks import record as records
from troupe_tasks.archives import disk
from troupe_tasks.archives.put import put
from troupe_tasks.errors import BackupFailed, SandboxGone
from troupe_tasks.journal import Decided, Journal, Step
from troupe_tasks.kits import image, pins
from troupe_tasks.operations import moving, outfit, room, vault
from troupe_tasks.operations.house import House
from troupe_tasks.operations.moving import Done, failure
from troupe_tasks.operations.vault import Backup
from troupe_tasks.record import Record
from troupe_tasks.text import line


@dataclass(frozen=True)
class Job:
    """A backup under way, or the proof of one that there is."""

    house: House
    id: str
    told: Callable[[str], None] = field(default=lambda _line: None)
    backup: str = ""
    over_budget: bool = False
    resumed: bool = False

    def record(self) -> Record:
        """Return the agent's record."""
        return records.load(self.house.paths, self.id)

    def name(self, done: Done) -> str:
        """Return the backup's name."""
        return self.backup or str(done["plan"]["name"])


def plan(job: Job, done: Done) -> Decided:
    """Check the room for the archive, and for a second sandbox beside the agent's own, before anything is stopped."""
    record = job.record()
    _refuse_over_budget(job)
    held_bytes = moving.held_bytes(job.house, record)
    kit = pins.pinned(job.house.paths, record.kit.type, record.kit.version)
    vault.refuse_without_room(
        job.house, record, archive_bytes=vault.parts_bytes(kit, held_bytes), sandbox_bytes=held_bytes
    )
    return {"name": vault.new_name(job.house, job.id, "backup")}


def look(job: Job, done: Done) -> Decided:
    """Check the room for a sandbox beside the agent's own."""
    _refuse_over_budget(job)
    found = vault.chosen(job.house, job.id, job.backup)
    vault.refuse_without_room(job.house, job.record(), archive_bytes=0, sandbox_bytes=found.bytes)
    return {}


def _refuse_over_budget(job: Job) -> None:
    verdict = room.verdict_beside(job.house, job.id, job.record().sizes)
    verdict.raise_refusals()
    if not job.over_budget:
        verdict.raise_over()


@moving.or_back
def quiesce(job: Job, done: Done) -> Decided:
    """Let current work finish, and end everything that runs inside."""
    record = job.record()
    return {"cut": moving.end_work(job.house, record, record.sandbox)}


@moving.or_back
def archive(job: Job, done: Done) -> Decided:
    """Archive what it has."""
    record = job.record()
    job.house.driver(record.driver).start(record.sandbox)
    found = vault.archive(job.house, record, record.sandbox, job.name(done), told=job.told)
    return {"archive": found.model_dump(mode="json")}


def go_on(job: Job, done: Done) -> Decided:
    """Start the gateway again, or stop the sandbox where it was stopped."""
    return moving.up_again(job.house, job.record(), resumed=job.resumed)


@moving.or_back
def prove(job: Job, done: Done) -> Decided:
    """Put the backup into a sandbox beside the agent's, and compare inside."""
    return {"manifest": _put_into_scratch(job.house, job.record(), job.name(done), told=job.told)}


def _scratch(record: Record) -> Record:
    """Return the agent's record as if it lived in the sandbox in which a backup is proved."""
    return record.model_copy(update={"move": record.move + 1})


def _put_into_scratch(house: House, record: Record, name: str, *, told: Callable[[str], None]) -> str:
    there = _scratch(record)
    folder = vault.place(house, record.id, name)
    kit = pins.pinned(house.paths, record.kit.type, record.kit.version)
    root = image.ensure_image(kit, house.paths, told).path
    outfit.make(house, there, outfit.spec(house, there, kit, image=root))
    driver = house.driver(there.driver)
    driver.start(there.sandbox)
    found = put(
        driver, there.sandbox, folder, disk.load(folder), deadline_s=vault.DEADLINE_S,
        reserve=lambda: vault.spare_mib(house, vault.disks(house, record)) << 20,
    )  # fmt: skip
    vault.prove(house, record.id, name)
    return found.digest


def clear(job: Job, done: Done) -> Decided:
    """Remove the sandbox of the proof; one that its runtime does not list is left alone."""
    return clear_scratch(job.house, job.record())


def clear_scratch(house: House, record: Record) -> Decided:
    """Remove the sandbox in which a backup is proved, if there is one."""
    scratch = _scratch(record).sandbox
    try:
        house.driver(record.driver).remove(scratch)
    except SandboxGone as error:
        return {"left": scratch, "why": line(str(error), 300)}
    return {}


def prove_in_scratch(house: House, record: Record, name: str, *, told: Callable[[str], None]) -> None:
    """Prove a backup in a sandbox that is gone afterwards. It can be run again after it was stopped at any moment."""
    try:
        _put_into_scratch(house, record, name, told=told)
    finally:
        clear_scratch(house, record)


BACKUP: tuple[Step[Job], ...] = (
    Step("plan", plan, "checking that it can be done", only_looks=True),
    Step("quiesce", quiesce, "letting current work finish"),
    Step("archive", archive, "archiving what it has"),
    Step("go-on", go_on, "starting the gateway again"),
    Step("prove", prove, "proving that it can be restored"),
    Step("clear", clear, "removing the sandbox of the proof"),
)
DRILL: tuple[Step[Job], ...] = (
    Step("look", look, "checking that it can be done", only_looks=True),
    Step("prove", prove, "proving that it can be restored"),
    Step("clear", clear, "removing the sandbox of the proof"),
)


def backup(house: House, agent_id: str, *, over_budget: bool, told: Callable[[str], None]) -> Backup:
    """Back an agent up, or go on with it, and return the backup, proved."""
    job = Job(house, agent_id, told, over_budget=over_budget)
    return _perform(job, "backup", BACKUP, finish=f"troupe backup {agent_id}")


def drill(house: House, agent_id: str, *, over_budget: bool, told: Callable[[str], None]) -> Backup:
    """Prove the newest backup once more, or go on with that, and return it."""
    begun = Journal(house.paths, agent_id).unfinished()
    asked = str(begun.inputs["backup"]) if begun is not None and begun.operation == "drill" else ""
    # One that has begun ends, though its backup may not read any more.
    name = asked or vault.chosen(house, agent_id, "").name
    job = Job(house, agent_id, told, backup=name, over_budget=over_budget)
    return _perform(job, "drill", DRILL, finish=f"troupe backup {agent_id} --drill")


def _perform(job: Job, operation: str, steps: tuple[Step[Job], ...], *, finish: str) -> Backup:
    records.load(job.house.paths, job.id)
    with locks.agent(job.house.paths, job.id):
        inputs = {"backup": job.backup}
        book, opened = moving.begin(job.house, job.id, operation, inputs=inputs, finish=finish, steps=steps)
        job = replace(job, resumed=bool(opened.done))
        done = journal.perform(book, opened, job, steps, told=lambda step: job.told(step.doing))
    if "go-on" in done:
        moving.refuse_down(done)
    if (cause := failure(done)) is not None:
        raise BackupFailed(f"{job.id} has no new proved backup; it goes on as before", cause=cause)
    return vault.chosen(job.house, job.id, job.name(done))
