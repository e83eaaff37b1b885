"""What an installed troupe was built from: the version, commit and address that the release session wrote into it."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from troupe_tasks import durable, strict

VERSION = r"^[0-9]{1,6}(\.[0-9]{1,6}){2}$"
_PLACE = Path(__file__).resolve().parent / "_data" / "release.json"
_HINT = "This installation is damaged: run the installer again."


class Stamp(BaseModel):
    """A release; the address is the https folder that holds the newest one, empty for a build that has none."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: str = Field(pattern=VERSION)
    commit: str = Field(pattern=r"^[0-9a-f]{12}$")
    address: str = Field(pattern=r"^(https://[0-9A-Za-z.:/_~-]{1,300}[0-9A-Za-z_~-])?$")


def read(place: Path = _PLACE) -> Stamp | None:
    """Return the stamp of this troupe, or None where no release session built it; raises StateUnreadable."""
    try:
        data = durable.read_private(place)
    except FileNotFoundError:
        return None
    return strict.parse(Stamp, data, place=place, hint=_HINT)
