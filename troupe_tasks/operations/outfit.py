"""What an agent's sandbox is made to, and what is put into a new one: persona, stand-ins, settings, seeds."""

from __future__ import annotations

import json
from pathlib import Path

from troupe_tasks import durable
from troupe_tasks.archives.put import flush
from troupe_tasks.kits import compose
from troupe_tasks.kits.model import Kit
from troupe_tasks.operations import gateway, wiring
from troupe_tasks.operations.house import House
from troupe_tasks.record import Record
from troupe_tasks.sandbox.protocol import GUEST_DIR, SandboxSpec, Sizes

ENV_FILE = f"{compose.HERMES_HOME}/.env"
_SOUL = "SOUL.md"
_SYNC_S = 600.0


def spec(house: House, record: Record, kit: Kit, *, image: Path) -> SandboxSpec:
    """Return what the sandbox that the record names is made to."""
    given = record.sizes
    return SandboxSpec(
        id=record.sandbox, image=image, egress=house.paths.egress(record.id) / "socket",
        sizes=Sizes(**given.model_dump()),
        env=compose.environment(kit, rehearsal=record.rehearsal),
    )  # fmt: skip


def make(house: House, record: Record, wanted: SandboxSpec) -> str:
    """Make a sandbox of the agent's, isolated as its record says, and return its identity.

    Never another way: the one that is strongest now may be weaker, and has not what the agent's files need.
    """
    return house.driver(record.driver, isolation=record.isolation).create(wanted)


def furnish(house: House, record: Record, kit: Kit) -> None:
    """Put the files of a new agent into its sandbox, by a program inside."""
    files = compose.state_files(
        kit, variables=wiring.variables(house, record, kit), settings=None if record.rehearsal else record.settings,
        soul=_kept_soul(house, record.id),
    )  # fmt: skip
    driver = house.driver(record.driver)
    driver.start(record.sandbox)  # the machine may have restarted since the last receipt
    ran = driver.run(record.sandbox, compose.UNPACK, stdin=compose.archive(files), cwd="/", deadline_s=60)
    gateway.expect_success(ran, "putting files into the sandbox")
    flush(driver, record.sandbox, deadline_s=_SYNC_S)  # before a receipt says that they are there


def settle(house: House, record: Record, kit: Kit) -> None:
    """Bring the stand-ins in the sandbox's .env in line with the services that the agent has."""
    if record.rehearsal:
        return
    none: dict[str, str | None] = {service.variable: None for service in kit.services}
    changes = json.dumps(none | wiring.variables(house, record, kit)).encode()
    command = ["/usr/bin/python3", "-I", "-S", f"{GUEST_DIR}/settle.py", ENV_FILE]
    driver = house.driver(record.driver)
    driver.start(record.sandbox)
    ran = driver.run(record.sandbox, command, stdin=changes, cwd="/", deadline_s=60)
    gateway.expect_success(ran, "putting the stand-ins into the sandbox")


def keep_soul(house: House, agent_id: str, soul: str | None) -> None:
    """Keep the persona that create was given, so that a reset has it again."""
    if soul is not None:
        durable.write(house.paths.agent(agent_id) / _SOUL, soul.encode())


def _kept_soul(house: House, agent_id: str) -> bytes | None:
    try:
        return durable.read_private(house.paths.agent(agent_id) / _SOUL)
    except FileNotFoundError:
        return None
