"""Whether each key of an agent is kept, readable and wired, without reading one, and what its provider said of it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from troupe_tasks import record as records
from troupe_tasks.egress import policy
from troupe_tasks.egress.outcomes import Outcome
from troupe_tasks.egress.policy import EgressPolicy
from troupe_tasks.errors import EgressFailed
from troupe_tasks.keystore.store import Keystore
from troupe_tasks.kits import pins
from troupe_tasks.kits.services import Service
from troupe_tasks.operations.house import House
from troupe_tasks.operations.outfit import ENV_FILE
from troupe_tasks.record import Record
from troupe_tasks.sandbox.protocol import State

_REFUSED = (401, 403)


class Declared(BaseModel):
    """A service of the agent's kit, as `secret list` shows it."""

    model_config = ConfigDict(frozen=True)

    service: str
    required: bool
    kept: bool
    hosts: tuple[str, ...]
    place: str
    line: str


class Proof(BaseModel):
    """One thing that `secret check` found about one service."""

    model_config = ConfigDict(frozen=True)

    service: str
    what: str
    ok: bool
    detail: str


def services(house: House, agent_id: str) -> list[Declared]:
    """Return every service that the agent has or can have."""
    record = records.load(house.paths, agent_id)
    kit = pins.pinned(house.paths, record.kit.type, record.kit.version)
    if record.key_tier == "none":
        return []
    kept = Keystore(house.paths, agent_id).services()
    return [
        Declared(
            service=one.name, required=one.required, kept=one.name in kept, hosts=one.reached_at(record.settings),
            place=one.place.form if not one.place.name else f"{one.place.form} {one.place.name}", line=one.line,
        )
        for one in kit.services if one.applies(record.settings)
    ]  # fmt: skip


def check(house: House, agent_id: str) -> list[Proof]:
    """Return what there is to say of each of the agent's keys."""
    record = records.load(house.paths, agent_id)
    kit = pins.pinned(house.paths, record.kit.type, record.kit.version)
    if record.key_tier == "none":
        return []
    kept = {found.service: found for found in Keystore(house.paths, agent_id).check()}
    allowed = policy.load(house.paths, agent_id)
    outcomes = _outcomes(house, agent_id)
    info = house.driver(record.driver).list().find(record.sandbox)
    runs = info is not None and info.state is State.RUNNING
    proofs: list[Proof] = []
    for name in (*record.services, *sorted(set(kept) - set(record.services))):
        found = kept.get(name)
        proofs.append(Proof(
            service=name, what="kept", ok=found is not None and found.ok,
            detail=found.why if found else f"there is no key: `troupe secret set {agent_id} {name}` gives it one",
        ))  # fmt: skip
        service = kit.service(name)
        if service is None or name not in record.services:
            proofs.append(Proof(service=name, what="wired", ok=False, detail="the agent has no such service"))
            continue
        proofs += [
            _known_to_broker(service, allowed, record),
            _inside(house, record, service, allowed, runs=runs),
        ]
        proofs.append(_said(name, outcomes))
    return proofs


def _outcomes(house: House, agent_id: str) -> dict[str, Outcome] | str:
    try:
        return house.broker.outcome(agent_id)
    except EgressFailed as error:
        return str(error)


def _known_to_broker(service: Service, allowed: EgressPolicy, record: Record) -> Proof:
    rule = next((rule for rule in allowed.services if rule.service == service.name), None)
    wanted = service.reached_at(record.settings)
    good = rule is not None and rule.hosts == wanted and rule.place == service.place
    detail = f"put in for {', '.join(wanted)} alone" if good else "the broker's policy does not say so"
    return Proof(service=service.name, what="wired", ok=good, detail=detail)


def _inside(house: House, record: Record, service: Service, allowed: EgressPolicy, *, runs: bool) -> Proof:
    """Tell whether the agent holds its stand-in; the question goes in on stdin, so that no process list shows it."""
    if not runs:
        return Proof(
            service=service.name, what="stand-in", ok=True, detail="not looked at: the agent is stopped"
        )
    stand_in = next((rule.stand_in for rule in allowed.services if rule.service == service.name), "")
    line = f"{service.variable}={stand_in}\n".encode()
    ran = house.driver(record.driver).run(
        record.sandbox, ["grep", "-qxFf", "-", ENV_FILE], stdin=line, cwd="/", deadline_s=30
    )
    detail = (
        f"{service.variable} in the agent's .env"
        if ran.status == 0
        else f"{service.variable} is not in its .env"
    )
    return Proof(service=service.name, what="stand-in", ok=ran.status == 0, detail=detail)


def _said(name: str, outcomes: dict[str, Outcome] | str) -> Proof:
    if isinstance(outcomes, str):
        return Proof(service=name, what="provider", ok=False, detail=outcomes)
    last = outcomes.get(name)
    if last is None:
        return Proof(service=name, what="provider", ok=True, detail="not asked since the broker started")
    refused = last.status in _REFUSED
    if not last.put_in:
        detail = f"answered {last.status}, but no key was put in: the agent did not send its stand-in"
        return Proof(service=name, what="provider", ok=not refused, detail=detail)
    detail = f"answered {last.status} at {last.at}, with the key put in"
    return Proof(
        service=name,
        what="provider",
        ok=not refused,
        detail=f"{detail}: the key itself is wrong" if refused else detail,
    )
