"""Give an agent a key, or take one away: kept, recorded, told to the broker, and its stand-in put into the agent.

A new key for a service that the agent has already is used from the next request on. A service that is new to the
agent, or taken away, changes the agent's .env, which its gateway reads when it starts. A sandbox that is lost is left
out: what brings the agent another one (a restore, a reset) puts its stand-ins in line, and must not be kept out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from troupe_tasks import journal, locks
from troupe_tasks import record as records
from troupe_tasks.errors import KeyMissing, Refused, UsageError
from troupe_tasks.journal import Decided, Journal, Step
from troupe_tasks.keystore.store import Keystore
from troupe_tasks.kits import pins
from troupe_tasks.kits.model import Kit
from troupe_tasks.kits.services import Service
from troupe_tasks.operations import moving, outfit, wiring
from troupe_tasks.operations.house import House, gateway_name
from troupe_tasks.record import Record
from troupe_tasks.secret import Secret
from troupe_tasks.text import line

Done = Mapping[str, Decided]


@dataclass(frozen=True)
class Job:
    """A change of one service under way; key is what a `set` was given."""

    house: House
    record: Record
    kit: Kit
    service: Service
    key: Secret | None = None


class Changed(BaseModel):
    """What a change did inside the agent; put_in is whether its sandbox could be brought in line."""

    model_config = ConfigDict(frozen=True)

    restarted: bool
    put_in: bool


def look(job: Job, done: Done) -> Decided:
    """Tell, before anything is changed, whether the agent has the service: what follows can't see it any more."""
    return {"has": job.service.name in job.record.services, "owed": _owed(job)}


def _owed(job: Job) -> bool:
    """Tell whether an earlier change could not be put into the sandbox, and the agent lives in that one still."""
    for receipt in reversed(Journal(job.house.paths, job.record.id).receipts):
        if receipt.step == "switch" and receipt.decided.get("moved"):
            return False
        if receipt.step == "put-in":
            return receipt.decided.get("put_in") is False
    return False


def keep(job: Job, done: Done) -> Decided:
    """Keep the key; the old one stays until the new one has been proved readable."""
    if job.key is None:
        raise Refused(f"the key for {job.service.name} is missing")
    Keystore(job.house.paths, job.record.id).put(job.service.name, job.key)
    return {}


def take_away(job: Job, done: Done) -> Decided:
    """Remove the key; gone already is fine."""
    with suppress(KeyMissing):
        Keystore(job.house.paths, job.record.id).remove(job.service.name)
    return {}


def note(job: Job, done: Done) -> Decided:
    """Record that the agent has the service."""
    return _recorded(job, {*job.record.services, job.service.name})


def forget(job: Job, done: Done) -> Decided:
    """Record that the agent no longer has the service, unless its kit can't do without."""
    return _recorded(job, {*job.record.services} - (set() if job.service.required else {job.service.name}))


def _recorded(job: Job, services: set[str]) -> Decided:
    record = records.load(job.house.paths, job.record.id)
    ordered = tuple(service.name for service in job.kit.services if service.name in services)
    records.save(job.house.paths, record.model_copy(update={"services": ordered}))
    return {"services": list(ordered)}


def wire(job: Job, done: Done) -> Decided:
    """Have the broker take up the agent's services, and forget the key that it held."""
    record = records.load(job.house.paths, job.record.id)
    wiring.open_way_out(job.house, record, job.kit)
    job.house.broker.forget(record.id)
    return {}


def put_in(job: Job, done: Done) -> Decided:
    """Bring the stand-ins in the agent's .env in line, and restart a gateway that runs with the old ones."""
    house, agent_id = job.house, job.record.id
    record = records.load(house.paths, agent_id)
    if done["look"]["has"] == (job.service.name in record.services) and not done["look"].get("owed"):
        return {"restarted": False}
    if not moving.usable(house, record):
        return {"restarted": False, "put_in": False}
    outfit.settle(house, record, job.kit)
    if record.wanted == "up":
        house.services.restart((gateway_name(agent_id),))
        return {"restarted": True}
    house.driver(record.driver).stop(record.sandbox, deadline_s=30)
    return {"restarted": False}


SET: tuple[Step[Job], ...] = (
    Step("look", look, "looking at what it has"),
    Step("keep", keep, "keeping the key"),
    Step("note", note, "recording the service"),
    Step("wire", wire, "telling the broker"),
    Step("put-in", put_in, "putting in its stand-in"),
)
REMOVE: tuple[Step[Job], ...] = (
    Step("look", look, "looking at what it has"),
    Step("take-away", take_away, "removing the key"),
    Step("forget", forget, "recording it"),
    Step("wire", wire, "telling the broker"),
    Step("put-in", put_in, "taking out its stand-in"),
)


def declared(house: House, agent_id: str, name: str) -> tuple[Record, Kit, Service]:
    """Return the agent's record, its kit and the service; refuse one that the agent can't have."""
    record = records.load(house.paths, agent_id)
    kit = pins.pinned(house.paths, record.kit.type, record.kit.version)
    if record.rehearsal:
        raise Refused(
            f"{agent_id} is a rehearsal agent: it has no keys to keep", hint="Create one without --rehearsal."
        )
    service = kit.service(name)
    if service is None or not service.applies(record.settings):
        known = [one.name for one in kit.services if one.applies(record.settings)]
        hint = f"Its services are: {', '.join(known)}." if known else "Its kit declares no service."
        raise UsageError(f"{agent_id} has no service {line(name, 60)!r}", hint=hint)
    return record, kit, service


def key_is_kept(house: House, agent_id: str, name: str) -> bool:
    """Tell whether an interrupted `secret set` of this service has the key already, so that nobody is asked again."""
    opened = Journal(house.paths, agent_id).unfinished()
    return opened is not None and opened.inputs == {"service": name} and "keep" in opened.done


def put(
    house: House, agent_id: str, name: str, key: Secret | None, *, told: Callable[[str], None]
) -> Changed:
    """Give the agent a key."""
    return _change(house, agent_id, name, key=key, operation="secret-set", steps=SET, told=told)


def remove(house: House, agent_id: str, name: str, *, told: Callable[[str], None]) -> Changed:
    """Take a key away from the agent."""
    return _change(house, agent_id, name, key=None, operation="secret-remove", steps=REMOVE, told=told)


def _change(
    house: House, agent_id: str, name: str, *, key: Secret | None, operation: str, steps: tuple[Step[Job], ...],
    told: Callable[[str], None],
) -> Changed:  # fmt: skip
    with locks.agent(house.paths, agent_id):
        record, kit, service = declared(house, agent_id, name)
        words = operation.replace("-", " ")
        book = Journal(house.paths, agent_id)
        finish = f"troupe {words} {agent_id} {name}"
        opened = book.open(operation, inputs={"service": name}, finish=finish, steps=steps)
        job = Job(house, record, kit, service, key)
        done = journal.perform(book, opened, job, steps, told=lambda step: told(step.doing))
    decided = done["put-in"]
    return Changed(restarted=bool(decided.get("restarted")), put_in=decided.get("put_in") is not False)
