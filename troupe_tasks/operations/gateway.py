"""An agent's gateway: Hermes held open in its sandbox, kept running by the machine's services.

The services run `python -m troupe_tasks.operations.gateway ID`, which starts the sandbox if it is down and then
becomes the driver's own client, so that nothing of troupe stays in memory beside a running gateway.
"""

from __future__ import annotations

import sys
from pathlib import Path

from troupe_tasks import durable, process
from troupe_tasks import record as records
from troupe_tasks.errors import SandboxFailed
from troupe_tasks.kits import compose, pins
from troupe_tasks.operations import outlets
from troupe_tasks.operations.house import House, gateway_name
from troupe_tasks.paths import Paths
from troupe_tasks.record import Record
from troupe_tasks.sandbox.protocol import Ran
from troupe_tasks.services import daemon
from troupe_tasks.services.protocol import Service
from troupe_tasks.text import line

# Hermes ends a running turn within its restart_drain_timeout (40 s in the kit's policy), then closes down.
STOP_WAIT_S = 70


def start(house: House, record: Record) -> None:
    """Put the gateway among the services and start it; already running is fine."""
    name = gateway_name(record.id)
    durable.make_private_dir(house.paths.logs(record.id))
    house.services.add(Service(
        name=name, argv=(sys.executable, "-m", "troupe_tasks.operations.gateway", record.id), env=outlets.places(house),
        log=log(house.paths, record.id), stop_wait_s=STOP_WAIT_S, relayed=True,
        # Else sbx, asked before its unit has begun, starts a daemon outside of it.
        stands_on=(daemon.UNIT,) if record.driver == "sbx" else (),
    ))  # fmt: skip
    house.services.start((name,))


def log(paths: Paths, agent_id: str) -> Path:
    """Return the file of what the gateway said."""
    return paths.logs(agent_id) / "gateway.log"


def expect_success(ran: Ran, doing: str) -> None:
    """Raise SandboxFailed unless a command of ours inside ended well."""
    if ran.status != 0:
        raise SandboxFailed(
            f"{doing} failed with status {ran.status}", cause=line(ran.stderr or ran.stdout, 300)
        )


def main(argv: list[str]) -> None:
    """Start one agent's sandbox and become its gateway."""
    house = House(Paths.from_env())
    record = records.load(house.paths, argv[0])
    kit = pins.pinned(house.paths, record.kit.type, record.kit.version)
    driver = house.driver(record.driver)
    driver.start(record.sandbox)
    env = compose.environment(kit, rehearsal=record.rehearsal)
    process.become(driver.gateway_argv(record.sandbox, list(kit.commands.gateway), env))


if __name__ == "__main__":
    main(sys.argv[1:])
