"""Factory reset: the agent, its kit version, its keys and its record stay; everything else starts anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from troupe_tasks import journal, locks
from troupe_tasks import record as records
from troupe_tasks.errors import KeyFailed
from troupe_tasks.journal import Decided, Journal, Step
from troupe_tasks.keystore.store import Keystore
from troupe_tasks.kits import pins
from troupe_tasks.operations import moving, outfit, readiness
from troupe_tasks.operations.house import House
from troupe_tasks.operations.moving import Done, Job
from troupe_tasks.record import SelfTest


def look(job: Job, done: Done) -> Decided:
    """Prove that it can be done."""
    prove(job)
    return {}


def prove(job: Job) -> None:
    """Raise what would stop a reset: the machine, a key that is not well, the budget. Nothing is changed."""
    # The agent's own driver has to be ready, not the one that a new agent would get.
    readiness.refuse_unready(House(job.house.paths, wanted=job.record().driver))
    refuse_bad_keys(job)
    moving.refuse_over_budget(job)


def refuse_bad_keys(job: Job) -> None:
    """Raise KeyFailed unless every key of the agent is kept in the form of its tier, and opens; none is shown."""
    record = job.record()
    if record.key_tier == "none":
        return
    kept = Keystore(job.house.paths, job.id)
    bad = [f"{found.service}: {found.why}" for found in kept.check() if not found.ok]
    bad += [f"{service}: it is missing" for service in record.services if service not in kept.services()]
    if bad:
        raise KeyFailed(
            f"not every key of {job.id} is well", cause="; ".join(bad),
            hint=f"`troupe secret check {job.id}` says more.",
        )  # fmt: skip


@moving.or_back
def furnish(job: Job, done: Done) -> Decided:
    """Put in what create puts in."""
    outfit.furnish(job.house, job.moved(done), job.kit)
    return {}


STEPS: tuple[Step[Job], ...] = (
    Step("look", look, "checking that it can be done", only_looks=True),
    Step("image", moving.have_image, "getting the kit's image", only_looks=True),
    Step("plan", moving.plan, "reserving room", only_looks=True),
    Step("quiesce", moving.quiesce, "letting current work finish"),
    Step("stop-old", moving.stop_old, "stopping the old sandbox"),
    Step("make", moving.make, "making a new sandbox"),
    Step("furnish", furnish, "putting in its files"),
    Step("test", moving.test, "sending it a first message"),
    Step("switch", moving.switch, "recording where it lives"),
    Step("go-on", moving.go_on, "starting the gateway"),
    Step("leave", moving.leave, "removing the sandbox that it left"),
)


def _job(house: House, agent_id: str, *, over_budget: bool, told: Callable[[str], None]) -> Job:
    record = records.load(house.paths, agent_id)
    kit = pins.pinned(house.paths, record.kit.type, record.kit.version)
    return Job(
        house, agent_id, kit, record.sizes, digest=record.kit.digest, over_budget=over_budget, told=told
    )  # fmt: skip


def check(house: House, agent_id: str) -> list[str]:
    """Return what a reset would do, step by step; raise what would stop it. Nothing is changed."""
    Journal(house.paths, agent_id).refuse_unfinished()
    job = _job(house, agent_id, over_budget=False, told=lambda _line: None)
    prove(job)
    return [step.doing for step in STEPS]


def reset(house: House, agent_id: str, *, over_budget: bool, told: Callable[[str], None]) -> SelfTest:
    """Reset an agent, or go on resetting it, and return its first answer. Raises MoveFailed when it went back."""
    with locks.agent(house.paths, agent_id):
        book = Journal(house.paths, agent_id)
        book.refuse_others("reset")
        job = _job(house, agent_id, over_budget=over_budget, told=told)
        finish = f"troupe reset {agent_id} --yes"
        book, opened = moving.begin(house, agent_id, "reset", inputs={}, finish=finish, steps=STEPS)
        job = replace(job, resumed=bool(opened.done))
        done = journal.perform(book, opened, job, STEPS, told=lambda step: told(step.doing))
    return moving.result_of(done)
