"""Ask the running broker: is it there, and take up changed policies. Starting it is the supervisor's work."""

from __future__ import annotations

import time
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from troupe_tasks.egress.outcomes import Outcome
from troupe_tasks.egress.policy import AgentId
from troupe_tasks.errors import EgressFailed, StateUnreadable
from troupe_tasks.host import sockets
from troupe_tasks.paths import Paths

Model = TypeVar("Model", bound=BaseModel)


class Question(BaseModel):
    """A line on the broker's control socket."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    ask: Literal["ping", "reload", "forget", "outcome"]
    agent: AgentId | Literal[""] = ""

    @model_validator(mode="after")
    def _of_one_agent_or_none(self) -> Question:
        if (self.ask in {"forget", "outcome"}) != bool(self.agent):
            raise ValueError("forget and outcome are asked of one agent")
        return self


class Pong(BaseModel):
    """What a broker says of itself; agents maps an ID to its open connections."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: str
    pid: int
    agents: dict[str, int]


class Reloaded(BaseModel):
    """What a reload changed; unreadable maps an ID to why its policy could not be taken up."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    attached: tuple[str, ...]
    detached: tuple[str, ...]
    unreadable: dict[str, str]


class Forgotten(BaseModel):
    """Whose keys are held no longer."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    forgotten: str


class Outcomes(BaseModel):
    """How each of an agent's services last answered."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    services: dict[str, Outcome]


class Broker:
    """The machine's broker, as seen by the commands."""

    def __init__(self, paths: Paths, *, deadline_s: float = 5.0) -> None:
        self._path = paths.run / "broker.sock"
        self._deadline_s = deadline_s

    def ping(self) -> Pong:
        """Return what the broker says of itself; raises EgressFailed."""
        return self._ask(Question(ask="ping"), Pong)

    def reload(self) -> Reloaded:
        """Have the policy files read again, and return what changed; raises EgressFailed."""
        return self._ask(Question(ask="reload"), Reloaded)

    def forget(self, agent_id: str) -> None:
        """Have an agent's keys dropped, so that its next request uses what is stored now; raises EgressFailed."""
        self._ask(Question(ask="forget", agent=agent_id), Forgotten)

    def outcome(self, agent_id: str) -> dict[str, Outcome]:
        """Return how each service last answered an agent since the broker started; raises EgressFailed."""
        return self._ask(Question(ask="outcome", agent=agent_id), Outcomes).services

    def wait_until_ready(self, *, deadline_s: float) -> Pong:
        """Return the first answer of a broker that is being started; raises EgressFailed at the deadline."""
        until = time.monotonic() + deadline_s
        while True:
            try:
                return self.ping()
            except EgressFailed:
                if time.monotonic() >= until:
                    raise
            time.sleep(0.05)

    def _ask(self, question: Question, model: type[Model]) -> Model:
        try:
            line = question.model_dump_json(exclude_defaults=True).encode()
            answer = sockets.ask(self._path, line, deadline_s=self._deadline_s)
            return model.model_validate_json(answer)
        except (OSError, StateUnreadable) as error:
            raise EgressFailed("the broker does not answer", cause=str(error)) from error
        except ValidationError as error:
            raise EgressFailed("the broker's answer is not of the form this version knows") from error
