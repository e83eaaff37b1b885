"""What one check of this machine found."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class Kind(StrEnum):
    """What a requirement is about; findings are shown grouped by it, in this order."""

    HARDWARE = "hardware"
    KEYS = "keys"
    SOFTWARE = "software"


class Level(StrEnum):
    """How a requirement stands: note never stops anything, action and fail stop `create`."""

    OK = "ok"
    NOTE = "note"
    ACTION = "action"
    FAIL = "fail"


class Finding(BaseModel):
    """One line of the doctor: the requirement, its verdict, the evidence, and what to do."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kind: Kind
    requirement: str
    verdict: Level
    detail: str
    todo: str = ""

    @property
    def stops(self) -> bool:
        """Return whether `create` must refuse."""
        return self.verdict in (Level.ACTION, Level.FAIL)
