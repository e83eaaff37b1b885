"""What a kit says about itself: kit.toml, read strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

_Line = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
_Package = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.-]{1,60}$")]
_Host = Annotated[str, StringConstraints(max_length=253, pattern=r"^(\*\.)?([a-z0-9-]{1,63}\.)+[a-z]{2,63}$")]
_Port = Annotated[int, Field(ge=1, le=65535)]
_Words = Annotated[tuple[_Line, ...], Field(min_length=1, max_length=20, strict=False)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ImageSpec(_Part):
    """What the image is built from: a Debian suite, its packages, and the Python that the lock is for."""

    suite: str = Field(pattern=r"^[a-z]{3,20}$")
    packages: tuple[_Package, ...] = Field(min_length=1, max_length=200, strict=False)
    python: str = Field(pattern=r"^3\.\d{1,2}$")


class DefaultSizes(_Part):
    """What an agent of this kit gets when nothing else is asked for."""

    cpus: int = Field(ge=1, le=256)
    memory_mib: int = Field(ge=256, le=1 << 20)
    storage_mib: int = Field(ge=1024, le=1 << 24)


class EgressHost(_Part):
    """A host that the policy `balanced` lets an agent reach; `*.` stands for one label."""

    host: _Host
    ports: tuple[_Port, ...] = Field(min_length=1, max_length=8, strict=False)


class Commands(_Part):
    """How the agent is run inside; `{message}` and `{usage}` are replaced in their own argument."""

    chat: _Words
    turn: _Words
    self_test: _Words
    gateway: _Words


class Kit(_Part):
    """A kit as its kit.toml describes it."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")
    version: str = Field(pattern=r"^\d{1,5}\.\d{1,5}\.\d{1,5}$")
    summary: _Line
    image: ImageSpec
    sizes: DefaultSizes
    egress: tuple[EgressHost, ...] = Field(max_length=200, strict=False)
    commands: Commands
    folder: Path = Field(strict=False)
    """Where the kit's other files lie: requirements.lock, SOUL.md, managed/."""

    def file(self, name: str) -> Path:
        """Return the path of one of the kit's files."""
        return self.folder / name
