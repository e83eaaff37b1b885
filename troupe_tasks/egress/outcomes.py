"""Remember how each service's host last answered an agent, so that a wrong key can be told from a missing one."""

from __future__ import annotations

import time

from pydantic import BaseModel, ConfigDict


class Outcome(BaseModel):
    """The last answer of a service's host.

    put_in is False where the stand-in was not in the declared place, so that it reached the host as it was.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    at: str
    status: int
    put_in: bool


class Outcomes:
    """The last outcome of each agent's services, in memory only."""

    def __init__(self) -> None:
        self._last: dict[str, dict[str, Outcome]] = {}

    def note(self, agent_id: str, service: str, *, status: int, put_in: bool) -> None:
        """Remember an answer."""
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._last.setdefault(agent_id, {})[service] = Outcome(at=at, status=status, put_in=put_in)

    def of(self, agent_id: str) -> dict[str, Outcome]:
        """Return an agent's outcomes."""
        return dict(self._last.get(agent_id, {}))

    def forget(self, agent_id: str) -> None:
        """Drop an agent's outcomes."""
        self._last.pop(agent_id, None)
