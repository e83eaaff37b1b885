"""What serves one agent: its policy and log, its share of the machine's way out, and the machine's secrets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from troupe_tasks.egress.audit import AuditLog, Entry
from troupe_tasks.egress.keys import Keys
from troupe_tasks.egress.limits import Limits
from troupe_tasks.egress.messages import Asking
from troupe_tasks.egress.outcomes import Outcomes
from troupe_tasks.egress.outside import Outside
from troupe_tasks.egress.policy import EgressPolicy
from troupe_tasks.egress.standins import Table
from troupe_tasks.egress.verdict import Cut, Refusal
from troupe_tasks.paths import Paths

if TYPE_CHECKING:
    from troupe_tasks.egress.authority import Authority


class Machine:
    """What all agents of this machine share."""

    def __init__(self, paths: Paths, *, outside: Outside, keys: Keys, limits: Limits) -> None:
        self.outside, self.keys, self.limits = outside, keys, limits
        self.rehearsal = paths.run / "rehearsal.sock"
        self.outcomes = Outcomes()
        self.stand_ins = Table()
        self._paths = paths
        self._authority: Authority | None = None

    @property
    def authority(self) -> Authority:
        """Return the machine's authority, which is loaded when the first agent has keys to protect."""
        if self._authority is None:
            from troupe_tasks.egress.authority import Authority

            self._authority = Authority(self._paths)
        return self._authority

    def forget(self, agent_id: str) -> None:
        """Drop what is held of one agent's keys."""
        self.keys.forget(agent_id)
        self.outcomes.forget(agent_id)

    def close(self) -> None:
        """Wipe the keys and end the threads."""
        self.keys.close()
        if self._authority is not None:
            self._authority.close()
        self.outside.pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True)
class Desk:
    """What all connections of one agent share; the policy is asked at each request, since it may change."""

    machine: Machine
    policy: Callable[[], EgressPolicy]
    audit: AuditLog
    lookups: asyncio.Semaphore
    upstreams: asyncio.Semaphore

    @property
    def limits(self) -> Limits:
        """Return the bounds."""
        return self.machine.limits

    async def told(
        self, entry: Entry, asking: Asking, work: Awaitable[bool], *, since: tuple[int, int] = (0, 0)
    ) -> bool:
        """Do one request's work, answer in the host's place when it is refused, and write its line.

        since is what the asking side had received and sent before this request, in bytes. Returns what the work
        does, False after a refusal; raises Cut.
        """
        began, (received, sent) = time.monotonic(), since
        try:
            return await work
        except Refusal as refusal:
            entry.status, entry.verdict, entry.why = refusal.status, refusal.verdict, refusal.why
            await asking.refuse(refusal)
            return False
        except (Cut, TimeoutError) as error:
            if entry.verdict == "allowed":
                entry.verdict, entry.why = "cut", str(error)
            raise Cut(str(error)) from error
        except asyncio.CancelledError:
            entry.verdict, entry.why = "cut", "it was given up"
            raise
        finally:
            entry.sent_bytes = asking.received_bytes - received
            entry.received_bytes = asking.sent_bytes - sent
            if not entry.is_covered:
                self.audit.write(entry, ms=(time.monotonic() - began) * 1000)
