"""What every change of an agent's sandbox has in common: the old one stays whole until the new one has answered.

An agent moves from its sandbox into a new one beside it. Only when a model turn in the new one has succeeded is the
record changed, and only then is the old one removed. Whatever fails before that sends the agent back: the new one
is removed, and the agent goes on in the old one, by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from troupe_tasks import journal, locks
from troupe_tasks import record as records
from troupe_tasks.archives.inside import measure
from troupe_tasks.errors import MoveFailed, SandboxFailed, SandboxGone, TroupeError
from troupe_tasks.journal import Decided, Journal
from troupe_tasks.kits import image, pins
from troupe_tasks.kits.model import Kit
from troupe_tasks.operations import gateway, outfit, room, vault, wiring
from troupe_tasks.operations.house import House, gateway_name
from troupe_tasks.operations.selftest import judged
from troupe_tasks.record import KitPin, Record, SelfTest, Sizes
from troupe_tasks.sandbox.protocol import State
from troupe_tasks.text import line

Done = Mapping[str, Decided]
STOP_S = 20


@dataclass(frozen=True)
class Job:
    """A move under way: whose, to which sizes, composed from which kit (digest: that of one from a registry)."""

    house: House
    id: str
    kit: Kit
    sizes: Sizes
    digest: str | None = None
    over_budget: bool = False
    told: Callable[[str], None] = field(default=lambda _line: None)
    resumed: bool = False
    """Whether an earlier run of it was interrupted, or failed."""

    def record(self) -> Record:
        """Return the agent's record as it is now."""
        return records.load(self.house.paths, self.id)

    def moved(self, done: Done) -> Record:
        """Return the agent's record as it is after the move."""
        record = self.record()
        changes: dict[str, Any] = {
            "move": _number(done) + 1, "sizes": _sizes(done), "moving_to": None,
            "kit": KitPin(type=record.kit.type, version=self.kit.version, digest=self.digest),
        }  # fmt: skip
        return record.model_copy(update=changes | self.changes())

    def changes(self) -> dict[str, Any]:
        """Return what else of the record is another after the move."""
        return {}

    def old(self, done: Done) -> str:
        """Return the sandbox that it moves out of."""
        return records.sandbox_of(self.id, _number(done))

    def new(self, done: Done) -> str:
        """Return the sandbox that it moves into."""
        return records.sandbox_of(self.id, _number(done) + 1)


AnyJob = TypeVar("AnyJob")


def _number(done: Done) -> int:
    number = done["plan"]["from"]
    if not isinstance(number, int):
        raise TypeError("the plan's receipt holds no number")
    return number


def _sizes(done: Done) -> Sizes:
    return Sizes.model_validate(done["plan"]["sizes"])


def or_back(do: Callable[[AnyJob, Done], Decided]) -> Callable[[AnyJob, Done], Decided]:
    """Return a step whose failure is decided, not raised: the steps after it undo what was done."""

    @functools.wraps(do)
    def step(job: AnyJob, done: Done) -> Decided:
        if failure(done) is not None:
            return {}
        try:
            return do(job, done)
        except Exception as error:  # noqa: BLE001 - a fault of troupe's own must not leave the agent down either
            return {"failed": cause(error)}

    return step


def cause(error: Exception) -> str:
    """Return what went wrong, for a receipt and for a person."""
    return line(str(error) if isinstance(error, TroupeError) else f"{type(error).__name__}: {error}", 400)


def failure(done: Done) -> str | None:
    """Return why what was done is undone, or None."""
    return next((str(decided["failed"]) for decided in done.values() if "failed" in decided), None)


def plan(job: Job, done: Done) -> Decided:
    """Check the sizes against the machine and reserve them, in one moment of it; write down what it moves out of.

    Refused, it gives back what it reserved, or what an earlier try did that was cut: the move has not begun.
    """
    try:
        with locks.machine(job.house.paths):
            record = job.record()
            refuse_over_budget(job)
            records.save(job.house.paths, record.model_copy(update={"moving_to": job.sizes}))
    except (TroupeError, KeyboardInterrupt):
        with suppress(TroupeError):  # the person hears of what stood in the way first
            if (kept := job.record()).moving_to is not None:
                records.save(job.house.paths, kept.model_copy(update={"moving_to": None}))
        raise
    return {"from": record.move, "sizes": job.sizes.model_dump()}


def begin(
    house: House,
    agent_id: str,
    operation: str,
    *,
    inputs: Decided,
    finish: str,
    steps: Sequence[journal.Step[Any]],
) -> tuple[Journal, journal.Open]:
    """Begin an operation on an agent that is there, or go on with it.

    What a move had reserved that was killed while it still looked is given back.
    """
    book = Journal(house.paths, agent_id)
    opened = book.open(operation, inputs=inputs, finish=finish, steps=steps)
    record = records.load(house.paths, agent_id)
    if not opened.done and record.moving_to is not None:
        records.save(house.paths, record.model_copy(update={"moving_to": None}))
    return book, opened


def planned_sizes(house: House, agent_id: str, operation: str) -> Sizes | None:
    """Return the sizes that an unfinished operation has settled on already, or None."""
    begun = Journal(house.paths, agent_id).unfinished()
    if begun is None or begun.operation != operation or "plan" not in begun.done:
        return None
    return _sizes(begun.done)


def refuse_over_budget(job: Job) -> None:
    """Raise OverBudget when the machine does not hold the new sandbox, unless the person said that it may."""
    verdict = room.verdict(job.house, job.id, job.sizes)
    verdict.raise_refusals()
    if not job.over_budget:
        verdict.raise_over()


def have_image(job: Job, done: Done) -> Decided:
    """Have the image of the new sandbox, before anything is stopped."""
    return {"digest": image.ensure_image(job.kit, job.house.paths, job.told).digest}


@or_back
def quiesce(job: Job, done: Done) -> Decided:
    """Let current work finish, and end everything that runs inside."""
    return {"cut": end_work(job.house, job.record(), job.old(done))}


def end_work(house: House, record: Record, sandbox: str) -> bool:
    """Stop the gateway, for good, and whatever else runs in the sandbox; return whether the gateway's work was cut.

    Not even a restart of the machine brings the gateway up then. The next start of the sandbox runs nothing but
    troupe's own programs, as they are now: it may have been started by an older troupe.
    """
    name = gateway_name(record.id)
    cut = bool(house.services.stop((name,)))
    house.services.remove(name)
    with suppress(SandboxGone):  # that may be why the agent moves
        house.driver(record.driver).stop(sandbox, deadline_s=STOP_S)
    return cut


@or_back
def stop_old(job: Job, done: Done) -> Decided:
    """Stop the old sandbox; it stays as it is."""
    with suppress(SandboxGone):  # a restore may be what brings an agent back whose sandbox is lost
        job.house.driver(job.record().driver).stop(job.old(done), deadline_s=STOP_S)
    return {}


@or_back
def make(job: Job, done: Done) -> Decided:
    """Make the new sandbox beside the old one."""
    there = job.moved(done)
    root = image.ensure_image(job.kit, job.house.paths, job.told).path
    wiring.open_way_out(job.house, there, job.kit)
    # What stands there was never lived in: an earlier try made it, or it was left when a proof was cut.
    with suppress(SandboxGone):
        job.house.driver(there.driver).remove(there.sandbox)
    identity = outfit.make(job.house, there, outfit.spec(job.house, there, job.kit, image=root))
    job.house.driver(there.driver).start(there.sandbox)
    return {"identity": identity}


def test(job: Job, done: Done) -> Decided:
    """Send one message in the new sandbox: only an answer lets the move go on."""
    why = failure(done)
    if why is None:
        there = job.moved(done)
        try:
            job.house.driver(there.driver).start(there.sandbox)  # the machine may have restarted meanwhile
            result = judged(job.house, there, job.kit)
            return {"passed": result.passed, "result": result.model_dump(mode="json")}
        except Exception as error:  # noqa: BLE001 - as in or_back
            why = cause(error)
    return {"passed": False, "cause": why}


def switch(job: Job, done: Done) -> Decided:
    """Record where it lives from now on: in the new sandbox if that has answered, else where it was."""
    if not passed(done):
        records.save(job.house.paths, job.record().model_copy(update={"moving_to": None}))
        return {"moved": False}
    records.save(job.house.paths, job.moved(done))
    records.save_self_test(job.house.paths, job.id, result_of(done))
    return {"moved": True}


def go_on(job: Job, done: Done) -> Decided:
    """Start the gateway where it lives now, or leave it stopped if it was."""
    record = job.record()
    kit = pins.pinned(job.house.paths, record.kit.type, record.kit.version)
    wiring.open_way_out(job.house, record, kit)
    if not passed(done):
        with suppress(SandboxGone):  # it may never have been made
            job.house.driver(record.driver).stop(job.new(done), deadline_s=STOP_S)
    return up_again(job.house, record, resumed=job.resumed)


def up_again(house: House, record: Record, *, resumed: bool) -> Decided:
    """Have it run as it is wanted. What fails a second time too ends the operation: a restore may be what helps."""
    try:
        _go_on_as_wanted(house, record)
    except TroupeError as error:
        if not resumed:
            raise
        return {"down": cause(error)}
    return {}


def refuse_down(done: Done) -> None:
    """Raise SandboxFailed when the agent could not be started again."""
    decided = done.get("go-on", {})
    if "down" in decided:
        raise SandboxFailed(
            "the agent could not be started again", cause=str(decided["down"]),
            hint="`troupe start ID` tries once more; `troupe restore ID` brings its newest backup back.",
        )  # fmt: skip


def _go_on_as_wanted(house: House, record: Record) -> None:
    """Start the sandbox and its gateway, or stop it, as the agent is wanted."""
    driver = house.driver(record.driver)
    if not usable(house, record):
        return
    if record.wanted == "down":
        driver.stop(record.sandbox, deadline_s=STOP_S)
    else:
        driver.start(record.sandbox)
        gateway.start(house, record)


def held_bytes(house: House, record: Record) -> int:
    """Return what an archive of the agent's sandbox may take, by its own account; one that was stopped is again.

    It can't hold more than its disk, whatever it says.
    """
    driver = house.driver(record.driver)
    driver.start(record.sandbox)
    try:
        return min(measure(driver, record.sandbox).archive_bytes, vault.most_bytes(record))
    finally:
        if record.wanted == "down":
            driver.stop(record.sandbox, deadline_s=STOP_S)


def usable(house: House, record: Record) -> bool:
    """Tell whether the agent's sandbox can be started: it is there, and whole."""
    return startable(house, record.driver, record.sandbox)


def startable(house: House, driver: str, sandbox: str) -> bool:
    """Tell whether a sandbox is there, and whole; so is one that an incomplete listing lacks."""
    listing = house.driver(driver).list()
    found = listing.find(sandbox)
    return not listing.complete if found is None else found.state in (State.RUNNING, State.STOPPED)


def leave(job: Job, done: Done) -> Decided:
    """Remove the sandbox in which it does not live: the old one after a move, else the new one.

    One that its runtime does not list, or that is another than the one on record, is left alone.
    """
    unused = job.old(done) if passed(done) else job.new(done)
    record = job.record()
    if unused == record.sandbox:
        raise SandboxFailed(f"{unused} is where {job.id} lives; it is not removed")
    try:
        job.house.driver(record.driver).remove(unused)
    except SandboxGone as error:
        return {"left": unused, "why": line(str(error), 300)}
    return {"removed": unused}


def passed(done: Done) -> bool:
    """Tell whether the new sandbox has answered."""
    return done["test"]["passed"] is True


def result_of(done: Done) -> SelfTest:
    """Return how the message in the new sandbox went; raises MoveFailed when the agent went back."""
    refuse_down(done)
    tested = done["test"]
    if tested["passed"] is True:
        return SelfTest.model_validate(tested["result"])
    raise MoveFailed(
        "the new sandbox was given up; the agent goes on where and as it was",
        cause=str(tested["cause"]) if "cause" in tested else SelfTest.model_validate(tested["result"]).cause,
    )
