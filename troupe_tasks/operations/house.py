"""The house of one operator: where things are, and the driver, services and broker that operations work with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pydantic import ConfigDict

from troupe_tasks import config
from troupe_tasks import record as records
from troupe_tasks.egress.control import Broker
from troupe_tasks.errors import TroupeError
from troupe_tasks.paths import Paths
from troupe_tasks.record import Record
from troupe_tasks.sandbox import drivers
from troupe_tasks.sandbox.protocol import Isolation, Listing, Sandboxes, SandboxInfo
from troupe_tasks.services.choose import keeper
from troupe_tasks.services.protocol import Services


class Unseen(Listing):
    """The listing of a runtime that did not answer, and what it ran into."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    complete: bool = False
    sandboxes: tuple[SandboxInfo, ...] = ()
    error: TroupeError


@dataclass(frozen=True)
class House:
    """Everything that an operation may need; each part is opened when it is first asked for.

    wanted is the driver that a person asked for, for an agent that is not there yet.
    """

    paths: Paths
    wanted: str | None = field(default=None, kw_only=True)

    @cached_property
    def chosen(self) -> str:
        """Return the driver of a new agent: the one asked for, the one that is set, or the strongest that is ready."""
        return self._told or drivers.strongest(self.paths)

    @property
    def at_a_glance(self) -> str:
        """Return the driver that the doctor judges by, which can't wait: one that agents live in counts, ready or not.

        Else one that does not answer at once is passed over.
        """
        if self._told:
            return self._told
        if any(record.driver == "sbx" for record in self.records()):
            return "sbx"
        return drivers.strongest(self.paths, deadline_s=0.4)

    @property
    def _told(self) -> str | None:
        return self.wanted or config.read(self.paths).get("driver")

    def driver(self, name: str | None = None, *, isolation: str | None = None) -> Sandboxes:
        """Return a driver by its name, or the one of a new agent; with isolation one that makes no other sandboxes."""
        kind = None if isolation is None else Isolation(isolation)
        return drivers.open_driver(name or self.chosen, self.paths, isolation=kind)

    def drivers(self, agents: Sequence[Record] | None = None) -> tuple[Sandboxes, ...]:
        """Return every driver that may have a sandbox here; agents are the records, where they were read already.

        An agent whose record does not read has one of those that are present.
        """
        recorded = {record.driver for record in (self.records() if agents is None else agents)}
        return tuple(self.driver(name) for name in drivers.NAMES if name in recorded or drivers.present(name))

    @cached_property
    def services(self) -> Services:
        """Return what keeps gateways and the broker running."""
        return keeper(self.paths)

    @cached_property
    def broker(self) -> Broker:
        """Return the machine's broker."""
        return Broker(self.paths)

    def records(self) -> list[Record]:
        """Return every agent's record that reads."""
        return records.load_all(self.paths)[0]

    def listings(self, agents: Sequence[Record] | None = None) -> dict[str, Listing]:
        """Return every sandbox of the machine by its driver, with one call of each runtime.

        A runtime that does not answer hides none of the others: its listing is empty, and not complete.
        """
        found: dict[str, Listing] = {}
        for driver in self.drivers(agents):
            try:
                found[driver.name] = driver.list()
            except TroupeError as error:
                found[driver.name] = Unseen(error=error)
        return found


def gateway_name(agent_id: str) -> str:
    """Return the name of an agent's gateway among the services."""
    return f"gateway-{agent_id}"
