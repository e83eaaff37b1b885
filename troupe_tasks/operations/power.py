"""Start, stop and restart agents: the gateway and its sandbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NoReturn

from troupe_tasks import journal, locks
from troupe_tasks import record as records
from troupe_tasks.budget import Verdict
from troupe_tasks.errors import DiskFull, SandboxGone
from troupe_tasks.journal import Decided, Journal, Step
from troupe_tasks.operations import gateway, moving, outlets, room
from troupe_tasks.operations.house import House, gateway_name
from troupe_tasks.record import Record

Done = Mapping[str, Decided]
_SANDBOX_STOP_S = 20


@dataclass(frozen=True)
class Job:
    """A start or stop under way."""

    house: House
    id: str
    over_budget: bool = False

    def record(self) -> Record:
        """Return the agent's record."""
        return records.load(self.house.paths, self.id)


def look(job: Job, done: Done) -> Decided:
    """Raise SandboxGone when there is nothing to start, before anything else is done."""
    _refuse_gone(job.house, job.record())
    return {}


def _refuse_gone(house: House, record: Record) -> None:
    one = record.id
    if not moving.usable(house, record):
        raise SandboxGone(
            f"the sandbox of {one} is gone, or not whole",
            hint=f"`troupe restore {one}` brings its newest backup back; `troupe reset {one}` starts it anew.",
        )


def verdict(house: House, agent_id: str) -> Verdict:
    """Return whether the machine holds an agent that is to run. Raises SandboxGone when there is nothing to start."""
    record = records.load(house.paths, agent_id)
    _refuse_gone(house, record)
    return _verdict(
        house, record, may_ask=False
    )  # a restart may be what mends a sandbox that does not answer


def _verdict(house: House, record: Record, *, may_ask: bool) -> Verdict:
    grown = house.driver(record.driver).disk_used_mib(record.sandbox, may_ask=may_ask)
    return room.verdict(house, record.id, record.sizes, grown_mib=grown)


def reserve(job: Job, done: Done) -> Decided:
    """Check the budget and write down that the agent is wanted up, in one moment of the machine."""
    record = job.record()
    with locks.machine(job.house.paths):
        found = _verdict(job.house, record, may_ask=True)
        found.raise_refusals()
        if not job.over_budget:
            found.raise_over()
        records.save(job.house.paths, record.model_copy(update={"wanted": "up"}))
    return {}


def open_egress(job: Job, done: Done) -> Decided:
    """Have the broker up, and the agent's way out open."""
    outlets.ensure(job.house, rehearsal=job.record().rehearsal)
    job.house.broker.reload()
    return {}


def start_gateway(job: Job, done: Done) -> Decided:
    """Start the sandbox and the gateway in it."""
    record = job.record()
    job.house.driver(record.driver).start(record.sandbox)
    gateway.start(job.house, record)
    return {}


def stop_gateway(job: Job, done: Done) -> Decided:
    """Let current work finish and end the gateway; then write down that the agent is wanted down.

    In this order: if one of them fails the stop has failed, and no gateway runs of which the record says otherwise.
    """
    killed = job.house.services.stop((gateway_name(job.id),))
    records.save(job.house.paths, job.record().model_copy(update={"wanted": "down"}))
    return {"cut": bool(killed)}


def stop_sandbox(job: Job, done: Done) -> Decided:
    """Stop the sandbox; one that is gone does not run."""
    record = job.record()
    with suppress(SandboxGone):
        job.house.driver(record.driver).stop(record.sandbox, deadline_s=_SANDBOX_STOP_S)
    return {}


START: tuple[Step[Job], ...] = (
    Step("look", look, "looking at the sandbox", only_looks=True),
    Step("reserve", reserve, "reserving room"),
    Step("egress", open_egress, "opening its way out"),
    Step("gateway", start_gateway, "starting the gateway"),
)
STOP: tuple[Step[Job], ...] = (
    Step("gateway", stop_gateway, "letting current work finish"),
    Step("sandbox", stop_sandbox, "stopping the sandbox"),
)


def start(house: House, agent_id: str, *, over_budget: bool, told: Callable[[str], None]) -> None:
    """Start one agent; running already is fine."""
    with _held(house, agent_id):
        _perform("start", START, Job(house, agent_id, over_budget), told)


def stop(house: House, agent_id: str, *, told: Callable[[str], None], for_good: bool = True) -> bool:
    """Stop one agent (stopped already is fine); return whether work was cut at the deadline.

    for_good: it is not to be started at once, so it is stopped on a full disk too, which it may be filling itself.
    """
    job = Job(house, agent_id)
    with _held(house, agent_id):
        try:
            return bool(_perform("stop", STOP, job, told)["gateway"]["cut"])
        except DiskFull as full:
            if for_good:
                told(f"{agent_id}: stopping it all the same")
                _stop_unrecorded(job, full)
            raise


def _stop_unrecorded(job: Job, full: DiskFull) -> NoReturn:
    """Stop without receipts. The record comes last: until the sandbox is down, it may take whatever is freed."""
    try:
        with suppress(DiskFull):  # it is told when the gateway is down
            job.house.services.stop((gateway_name(job.id),))
    finally:  # whatever became of the gateway
        stop_sandbox(job, {})
    with suppress(DiskFull):
        records.save(job.house.paths, job.record().model_copy(update={"wanted": "down"}))
    raise DiskFull(f"{job.id} is stopped, but that could not be written down", cause=full.what) from full


def known(house: House, agent_id: str) -> None:
    """Raise NotFound for an agent that is neither here nor half made or half deleted."""
    pending = Journal(house.paths, agent_id).unfinished()
    if pending is None or pending.only_looked:
        records.load(house.paths, agent_id)


@contextmanager
def _held(house: House, agent_id: str) -> Iterator[None]:
    known(house, agent_id)
    with locks.agent(house.paths, agent_id):
        yield


def _perform(
    name: str, steps: tuple[Step[Job], ...], job: Job, told: Callable[[str], None]
) -> Mapping[str, Decided]:
    finish = f"troupe {name} {job.id}"
    book, opened = moving.begin(job.house, job.id, name, inputs={}, finish=finish, steps=steps)
    # Failed, it keeps nothing else out: a reset, a restore or a resize may be what helps.
    return journal.perform(
        book, opened, job, steps, told=lambda step: told(f"{job.id}: {step.doing}"), may_be_left=True
    )
