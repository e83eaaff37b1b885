"""Ask the running broker: is it there, and take up changed policies. Starting it is the supervisor's work."""

from __future__ import annotations

import time
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from troupe_tasks.errors import EgressFailed, StateUnreadable
from troupe_tasks.host import sockets
from troupe_tasks.paths import Paths

Model = TypeVar("Model", bound=BaseModel)


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


class Broker:
    """The machine's broker, as seen by the commands."""

    def __init__(self, paths: Paths, *, deadline_s: float = 5.0) -> None:
        self._path = paths.run / "broker.sock"
        self._deadline_s = deadline_s

    def ping(self) -> Pong:
        """Return what the broker says of itself; raises EgressFailed."""
        return self._ask("ping", Pong)

    def reload(self) -> Reloaded:
        """Have the policy files read again, and return what changed; raises EgressFailed."""
        return self._ask("reload", Reloaded)

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

    def _ask(self, what: str, model: type[Model]) -> Model:
        try:
            answer = sockets.ask(self._path, f'{{"ask": "{what}"}}'.encode(), deadline_s=self._deadline_s)
            return model.model_validate_json(answer)
        except (OSError, StateUnreadable) as error:
            raise EgressFailed("the broker does not answer", cause=str(error)) from error
        except ValidationError as error:
            raise EgressFailed("the broker's answer is not of the form this version knows") from error
