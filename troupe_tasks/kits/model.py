"""What a kit says about itself: kit.toml, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from troupe_tasks.kits.services import Host, Service, fit
from troupe_tasks.kits.settings import Name, Setting, Value

_Line = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
_Package = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9+.-]{1,60}$")]
_Port = Annotated[int, Field(ge=1, le=65535)]
Type = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
# One spelling for each version: 1.02.3 would be another tag of the same one.
Version = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,4})(\.(0|[1-9][0-9]{0,4})){2}$")]
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
    docker_mib: int = Field(default=512, ge=512, le=1 << 24)
    """A disk for Docker's images and build cache, with the driver that makes one (sbx)."""


class EgressHost(_Part):
    """A host that the policy `balanced` lets an agent reach; `*.` stands for one label."""

    host: Host
    ports: tuple[_Port, ...] = Field(min_length=1, max_length=8, strict=False)


class Commands(_Part):
    """How the agent is run inside; `{message}`, `{usage}` and `{file}` are replaced in their own argument."""

    chat: _Words
    turn: _Words
    self_test: _Words
    gateway: _Words
    backup: tuple[_Line, ...] = Field(default=(), max_length=20, strict=False)
    """How it backs itself up into {file}; empty where it can't."""


class Model(_Part):
    """Where the settings say which model is used: its name, its context in tokens, its provider's address."""

    name: Name
    context_length: Name
    provider: Name
    addresses: Mapping[str, Value] = Field(max_length=20)
    """The provider's address, by the value of the setting provider; another value's is in the setting address."""
    address: Name

    def at(self, settings: Mapping[str, str]) -> str:
        """Return the address of the OpenAI-compatible interface."""
        return self.addresses.get(settings[self.provider]) or settings[self.address]


class Kit(_Part):
    """A kit as its kit.toml describes it, with its services.json."""

    name: Type
    version: Version
    summary: _Line
    image: ImageSpec
    sizes: DefaultSizes
    egress: tuple[EgressHost, ...] = Field(max_length=200, strict=False)
    commands: Commands
    model: Model | None = None
    settings: tuple[Setting, ...] = Field(default=(), max_length=50, strict=False)
    services: tuple[Service, ...] = Field(default=(), max_length=50, strict=False)
    folder: Path = Field(strict=False)
    """Where the kit's other files lie: requirements.lock, SOUL.md, managed/."""

    @model_validator(mode="after")
    def _fits(self) -> Kit:
        fit(self.services, self.settings)
        known: set[str] = set()
        for setting in self.settings:
            earlier = {setting.when.setting if setting.when else None, setting.default_by} - {None}
            if setting.name in known or not earlier <= known:
                raise ValueError(f"setting {setting.name}: named twice, or it leans on one that comes later")
            known.add(setting.name)
        leant_on = (
            {self.model.name, self.model.context_length, self.model.provider, self.model.address}
            if self.model
            else set()
        )
        if not leant_on <= known:
            raise ValueError("model names a setting that the kit does not have")
        return self

    def service(self, name: str) -> Service | None:
        """Return the service of a name."""
        return next((service for service in self.services if service.name == name), None)

    def file(self, name: str) -> Path:
        """Return the path of one of the kit's files."""
        return self.folder / name
