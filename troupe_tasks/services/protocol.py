"""What a keeper of services can be asked, whichever it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

WRITTEN_ANEW = "Remove it; `troupe start` writes it anew."
FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1, 30


class Phase(StrEnum):
    """Where a service is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting to be restarted"
    STOPPING = "stopping"
    STOPPED = "stopped"
    ENDED = "ended by itself"
    FAILED = "failed"

    @property
    def up(self) -> bool:
        """Tell whether it runs, or will again by itself: such a gateway counts as running."""
        return self in {Phase.STARTING, Phase.RUNNING, Phase.WAITING}


@dataclass(frozen=True)
class ServiceState:
    """A service's phase, process, since when (seconds of the epoch), exit status if it ended, why if it failed."""

    phase: Phase
    pid: int | None = None
    since: float | None = None
    exit: int | None = None
    why: str = ""


@dataclass(frozen=True)
class Service:
    """A program to keep up.

    It counts as started after start_s. It is restarted whenever it ends, unless by a status in final_exits, after
    growing pauses; start_tries restarts within limit_s, and one more end makes it failed. It is stopped by SIGINT to
    its whole group, after stop_wait_s by SIGKILL. log must lie in a folder of ours. What a relayed one prints was
    chosen by others: it reaches the log by services/relay.py alone. stands_on are the system's own units that have to
    be up before it, where the same manager has both.
    """

    name: str
    argv: tuple[str, ...]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    start_s: int = 5
    start_tries: int = 5
    stop_wait_s: int = 70
    final_exits: tuple[int, ...] = ()
    relayed: bool = False
    stands_on: tuple[str, ...] = ()

    @property
    def pauses_s(self) -> tuple[int, ...]:
        """Return the pause before each restart."""
        return tuple(min(FIRST_PAUSE_S << number, _LONGEST_PAUSE_S) for number in range(self.start_tries))

    @property
    def longest_pause_s(self) -> int:
        """Return what the pauses grow to."""
        return min(FIRST_PAUSE_S << self.start_tries, _LONGEST_PAUSE_S)

    @property
    def limit_s(self) -> int:
        """Return a time in which one that never lasts start_s uses up its tries, pauses included."""
        return self.start_tries * self.longest_pause_s + (self.start_tries + 1) * self.start_s + 5


class Services(Protocol):
    """A keeper of services. Every call is safe to repeat."""

    def add(self, service: Service) -> None:
        """Make a service known, or change it; it is left stopped, unless it ran just so already."""

    def remove(self, name: str) -> None:
        """Stop a service and forget it."""

    def start(self, names: Iterable[str]) -> None:
        """Start services; one that runs is left alone."""

    def stop(self, names: Iterable[str]) -> tuple[str, ...]:
        """Stop services, all at once, and return those that had to be killed."""

    def restart(self, names: Iterable[str]) -> tuple[str, ...]:
        """Stop and start services, and return those that had to be killed."""

    def states(self) -> dict[str, ServiceState]:
        """Return every known service's state, in one call to the keeper."""

    def shutdown(self) -> None:
        """Stop every service and the keeper itself."""
