"""The house of one operator: where things are, and the driver, services and broker that operations work with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from troupe_tasks import record as records
from troupe_tasks.egress.control import Broker
from troupe_tasks.paths import Paths
from troupe_tasks.record import Record
from troupe_tasks.sandbox.drivers import open_driver
from troupe_tasks.sandbox.protocol import Listing, Sandboxes
from troupe_tasks.services.choose import keeper
from troupe_tasks.services.protocol import Services

DEFAULT_DRIVER = "capsule"


@dataclass(frozen=True)
class House:
    """Everything that an operation may need; each part is opened when it is first asked for."""

    paths: Paths

    def driver(self, name: str = DEFAULT_DRIVER) -> Sandboxes:
        """Return a driver by its name."""
        return open_driver(name, self.paths)

    @cached_property
    def services(self) -> Services:
        """Return what keeps gateways and the broker running."""
        return keeper(self.paths)

    @cached_property
    def broker(self) -> Broker:
        """Return the machine's broker."""
        return Broker(self.paths)

    def records(self) -> list[Record]:
        """Return every agent's record."""
        return records.load_all(self.paths)

    def listing(self) -> Listing:
        """Return every sandbox of the machine, with one call of the runtime."""
        return self.driver().list()


def gateway_name(agent_id: str) -> str:
    """Return the name of an agent's gateway among the services."""
    return f"gateway-{agent_id}"
