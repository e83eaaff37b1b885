"""The machine's shared services: the broker, which carries all agents' traffic, and the rehearsal model."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from troupe_tasks import durable, resources
from troupe_tasks.names import BROKER, REHEARSAL
from troupe_tasks.operations.house import House
from troupe_tasks.services.protocol import Service


def ensure(house: House, *, rehearsal: bool) -> None:
    """Have the broker running and ready (and the rehearsal model, when an agent needs it)."""
    programs = {BROKER: "troupe_tasks.egress.broker"}
    if rehearsal:
        programs[REHEARSAL] = "troupe_tasks.rehearsal.server"
    for name, module in programs.items():
        durable.make_private_dir(house.paths.logs(name))
        house.services.add(Service(
            name=name, argv=(sys.executable, "-m", module), log=log(house, name), env=places(house), start_s=1,
            stop_wait_s=10,
        ))  # fmt: skip
    house.services.start(programs)
    house.broker.wait_until_ready(deadline_s=60)  # a busy machine is slow to start a program, and not broken


def log(house: House, name: str) -> Path:
    """Return the file of what a shared service said."""
    return house.paths.logs(name) / f"{name}.log"


def places(house: House) -> dict[str, str]:
    """Return the variables by which a service finds the same code and folders as the command that started it."""
    paths = house.paths
    # sbx finds its daemon and its disks by these as well.
    kept = {
        name: os.environ[name] for name in ("XDG_CACHE_HOME", "SANDBOXES_STORAGE_ROOT") if name in os.environ
    }
    return {
        **kept, "XDG_DATA_HOME": str(paths.data.parent), "XDG_CONFIG_HOME": str(paths.config.parent),
        "XDG_STATE_HOME": str(paths.state.parent), "PYTHONPATH": str(resources.import_root()),
    }  # fmt: skip
