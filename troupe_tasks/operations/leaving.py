"""Leave the sandbox that an agent has moved out of: it goes by the word of an archive that is whole now, or it stays.

The agent lives in its new sandbox already. So nothing here sends it back, and nothing here is worth a loss: whatever
speaks against the removal leaves the old sandbox where it is, and the person is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import JsonValue

from troupe_tasks.archives import disk
from troupe_tasks.errors import BackupDamaged, DiskFull, OverBudget, SandboxFailed
from troupe_tasks.journal import Decided
from troupe_tasks.operations import backup, moving, room, vault
from troupe_tasks.operations.moving import Done
from troupe_tasks.text import line

if TYPE_CHECKING:
    from troupe_tasks.operations.move import Job


def recheck(job: Job, done: Done) -> Decided:
    """Decide which archive the old sandbox may go by: the one that its receipt tells of, or one taken anew.

    None when there is no such archive; nor need there be one of a sandbox that can't be used any more. What a restore
    has archived was put into no sandbox yet: that is done now.
    """
    if not moving.passed(done):
        return {"archive": None}
    if job.backup:  # a proof that was cut has left its sandbox
        backup.clear_scratch(job.house, job.record())
    if not _is_there(job, job.old(done)):
        return {"archive": None}
    try:
        found = _whole(job, done)
        if found is not None and job.backup:
            _refuse_third(job)
            backup.prove_in_scratch(job.house, job.record(), _name(done), told=job.told)
    except (SandboxFailed, BackupDamaged, DiskFull, OverBudget) as error:
        # Of another fault of this machine's the same command is run again.
        return {"archive": None, "why": line(f"its archive is not relied on: {error}", 400)}
    return {"archive": found}


def _refuse_third(job: Job) -> None:
    """Raise OverBudget where the machine does not hold the sandbox of the proof beside the new one, which runs."""
    verdict = room.verdict_beside(job.house, job.id, job.record().sizes)
    verdict.raise_refusals()
    if not job.over_budget:
        verdict.raise_over()


def _whole(job: Job, done: Done) -> JsonValue:
    """Return the archive's own description, read again; one that was damaged since is taken anew."""
    expected = done["archive"]["archive"]
    if expected is None:
        return None
    try:
        _prove(job, done, expected)
    except BackupDamaged as error:
        job.told(f"archiving once more: {error}")
        vault.discard(job.house, job.id, _name(done))
        record = job.record()
        job.house.driver(record.driver).start(job.old(done))
        found = vault.archive(job.house, record, job.old(done), _name(done), told=job.told)
        return found.model_dump(mode="json")
    return expected


def _prove(job: Job, done: Done, expected: JsonValue) -> None:
    folder = vault.place(job.house, job.id, _name(done))
    found = disk.load(folder)
    if found.model_dump(mode="json") != expected:
        raise BackupDamaged(f"{folder} is not the archive that the receipt tells of")
    disk.rehash(folder, found)


def _name(done: Done) -> str:
    return str(done["look"]["archive"])


def leave(job: Job, done: Done) -> Decided:
    """Remove the sandbox in which it does not live, or say why that is left alone."""
    if not moving.passed(done):
        return moving.leave(job, done)
    old = job.old(done)
    if not _is_there(job, job.new(done)):
        return _left(old, f"{job.new(done)} can't be used, so this may be all that there is")
    if _is_there(job, old):
        expected = done["recheck"]["archive"]
        if expected is None:
            return _left(old, str(done["recheck"].get("why", "what is in it was not archived")))
        try:
            _prove(job, done, expected)
        except BackupDamaged as error:
            return _left(old, str(error))
    return moving.leave(job, done)


def _is_there(job: Job, sandbox: str) -> bool:
    return moving.startable(job.house, job.record().driver, sandbox)


def _left(sandbox: str, why: str) -> Decided:
    return {"left": sandbox, "why": line(why, 300)}
