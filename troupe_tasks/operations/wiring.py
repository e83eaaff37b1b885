"""Put the keys where they are kept, and tell the broker what it puts in for which service of an agent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pydantic import BaseModel, ConfigDict

from troupe_tasks import locks
from troupe_tasks import record as records
from troupe_tasks.egress import policy
from troupe_tasks.errors import Refused
from troupe_tasks.journal import Journal
from troupe_tasks.keystore.store import Keystore
from troupe_tasks.keystore.tiers import Tier
from troupe_tasks.kits import compose, pins
from troupe_tasks.kits.model import Kit
from troupe_tasks.kits.services import Service
from troupe_tasks.operations import outlets
from troupe_tasks.operations.house import House
from troupe_tasks.record import Policy, Record
from troupe_tasks.secret import Secret

_MEANING: Mapping[Policy, str] = {
    "balanced": "what its kit and its services declare",
    "locked": "its model alone",
    "open": "everything but this machine and private networks",
}


def store_keys(house: House, record: Record, keys: Mapping[str, Secret]) -> tuple[str, ...]:
    """Keep the keys in the agent's tier, and return the services that have one; each has to have one then."""
    if record.key_tier == "none":
        return ()
    kept = Keystore(house.paths, record.id)
    kept.create(Tier(record.key_tier))
    for service, key in keys.items():
        kept.put(service, key)
    missing = sorted(set(record.services) - set(kept.services()))
    if missing:
        raise Refused(
            f"the key for {missing[0]} is missing", hint="Run the same command again; it asks for it."
        )
    return kept.services()


def kept_keys(house: House, agent_id: str) -> tuple[str, ...]:
    """Return the services whose keys an agent has already; none when it has no record yet."""
    record = records.find(house.paths, agent_id)
    if record is None or record.key_tier == "none":
        return ()
    return Keystore(house.paths, agent_id).services()


def open_way_out(house: House, record: Record, kit: Kit) -> policy.EgressPolicy:
    """Write what the agent may reach and what its stand-ins are, and have the broker take that up.

    A stand-in that the agent has already stays: it is written down before the agent gets it.
    """
    known = {rule.service: rule.stand_in for rule in _known(house, record)}
    rules = tuple(
        service.rule(record.settings, known.get(service.name) or service.new_stand_in())
        for service in chosen(kit, record)
    )
    origin = f"kit {kit.name} {kit.version}"
    hosts = tuple(policy.HostRule(host=one.host, ports=one.ports, origin=origin) for one in kit.egress)
    found = policy.EgressPolicy(
        id=record.id, rehearsal=record.rehearsal, mode=record.policy, hosts=hosts, services=rules
    )
    policy.save(house.paths, found)
    outlets.ensure(house, rehearsal=record.rehearsal)
    house.broker.reload()
    return found


def _known(house: House, record: Record) -> Iterable[policy.ServiceRule]:
    try:
        return policy.load(house.paths, record.id).services
    except FileNotFoundError:
        return ()


def chosen(kit: Kit, record: Record) -> tuple[Service, ...]:
    """Return the services that the agent has, in the kit's order."""
    return tuple(service for service in kit.services if service.name in record.services)


def variables(house: House, record: Record, kit: Kit) -> dict[str, str]:
    """Return what stands in the agent's .env: each service's stand-in, or the rehearsal model's."""
    if record.rehearsal:
        return {compose.REHEARSAL_VARIABLE: compose.rehearsal_key()}
    given = {rule.service: rule.stand_in for rule in policy.load(house.paths, record.id).services}
    return {service.variable: given[service.name] for service in chosen(kit, record)}


class Reachable(BaseModel):
    """What an agent may reach, each rule with who asked for it."""

    model_config = ConfigDict(frozen=True)

    mode: Policy
    meaning: str
    rules: tuple[str, ...]


def reachable(house: House, agent_id: str) -> Reachable:
    """Return what the broker lets the agent reach."""
    mode = records.load(house.paths, agent_id).policy
    try:
        allowed = policy.load(house.paths, agent_id)
    except FileNotFoundError:
        return Reachable(mode=mode, meaning=_MEANING[mode], rules=())
    return Reachable(mode=mode, meaning=_MEANING[mode], rules=tuple(_rules(allowed)))


def _rules(allowed: policy.EgressPolicy) -> Iterator[str]:
    if allowed.rehearsal:
        yield f"{policy.REHEARSAL_HOST}:80 (rehearsal)"
    for service in allowed.services:
        if allowed.mode != "locked" or service.model_provider:
            yield from (
                f"{host}:443 (service {service.service}, its key is put in)" for host in service.hosts
            )
    if allowed.mode == "open":
        yield "every public name and address, ports 80 and 443 (policy open)"
    for rule in allowed.hosts:
        if allowed.mode != "locked" or rule.model_provider:
            yield f"{rule.host}:{','.join(map(str, rule.ports))} ({rule.origin})"


def change_policy(house: House, agent_id: str, mode: Policy) -> None:
    """Record another policy and have the broker take it up; it ends what it no longer lets through."""
    with locks.agent(house.paths, agent_id):
        record = records.load(house.paths, agent_id).model_copy(update={"policy": mode})
        Journal(house.paths, agent_id).refuse_unfinished()
        records.save(house.paths, record)
        open_way_out(house, record, pins.pinned(house.paths, record.kit.type, record.kit.version))
