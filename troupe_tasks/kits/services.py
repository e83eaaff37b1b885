"""The services that a kit's agents talk to with a key: services.json, read strictly.

A key never enters an agent. What enters is a stand-in that looks like one; the broker puts the key in its place,
on the service's hosts and in the declared place only.
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from troupe_tasks.egress.policy import Place, ServiceRule, host_name
from troupe_tasks.kits.settings import Line, Name, Setting, When, address_host

Host = Annotated[
    str, StringConstraints(max_length=253, pattern=r"^(\*\.)?([a-z0-9-]{1,63}\.)+[a-z]{2,63}$"),
    AfterValidator(host_name),
]  # fmt: skip
_ALPHABETS = {
    "hex": "0123456789abcdef",
    "digits": string.digits,
    "letters": string.ascii_letters + string.digits,
}
_RANDOM = re.compile(r"\{(hex|digits|letters):([0-9]{1,3})\}")
# So that no two stand-ins are ever the same, nor one guessed.
_LEAST_RANDOM = 24
_MOST_LONG = 200


class Service(BaseModel):
    """A service, as services.json declares it.

    stand_in is what its keys look like: fixed text with {hex:N}, {digits:N} or {letters:N} for what is random.
    hosts_from names a setting with an address, whose host is the service's. variable is what the agent finds the
    stand-in in. native is the name by which Docker Sandboxes knows the service itself, if it does.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Name
    line: Line
    required: bool
    variable: str = Field(pattern=r"^[A-Z][A-Z0-9_]{1,60}$")
    hosts: tuple[Host, ...] = Field(default=(), max_length=15, strict=False)  # a setting may bring one more
    hosts_from: Name | None = None
    place: Place
    stand_in: str = Field(min_length=8, max_length=100, pattern=r"^[!-~]+$")
    native: Name | None = None
    model_provider: bool = False
    when: When | None = None

    @field_validator("stand_in")
    @classmethod
    def _random_enough(cls, look: str) -> str:
        if sum(int(count) for _, count in _RANDOM.findall(look)) < _LEAST_RANDOM:
            raise ValueError(f"at least {_LEAST_RANDOM} characters have to be random")
        if len(_RANDOM.sub(lambda found: "x" * int(found[2]), look)) > _MOST_LONG:
            raise ValueError(f"at most {_MOST_LONG} characters can be put in place of")
        if set("{}") & set(_RANDOM.sub("", look)):
            raise ValueError("it holds a brace that is no {hex:N}, {digits:N} or {letters:N}")
        return look

    @model_validator(mode="after")
    def _has_hosts(self) -> Service:
        if not self.hosts and self.hosts_from is None:
            raise ValueError("it has neither hosts nor hosts_from")
        return self

    def applies(self, settings: Mapping[str, str]) -> bool:
        """Tell whether an agent with these settings has any use for the service."""
        return self.when is None or self.when.holds(settings)

    def reached_at(self, settings: Mapping[str, str]) -> tuple[str, ...]:
        """Return the hosts that the key may go to."""
        further = (address_host(settings[self.hosts_from]),) if self.hosts_from else ()
        return self.hosts + further

    def new_stand_in(self) -> str:
        """Return a new stand-in, which looks like a key of this service and opens nothing."""
        return _RANDOM.sub(lambda found: _random(found[1], int(found[2])), self.stand_in)

    def rule(self, settings: Mapping[str, str], stand_in: str) -> ServiceRule:
        """Return what the broker has to know of the service for one agent."""
        return ServiceRule(
            service=self.name, hosts=self.reached_at(settings), place=self.place, stand_in=stand_in,
            model_provider=self.model_provider,
        )  # fmt: skip


def _random(kind: str, count: int) -> str:
    return "".join(secrets.choice(_ALPHABETS[kind]) for _ in range(count))


class Services(BaseModel):
    """The whole of services.json: in the order in which a person is asked."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    services: tuple[Service, ...] = Field(max_length=50, strict=False)

    @field_validator("services")
    @classmethod
    def _told_apart(cls, services: tuple[Service, ...]) -> tuple[Service, ...]:
        names = [service.name for service in services]
        if len(set(names)) != len(names):
            raise ValueError("two services have one name")
        return services


def fit(services: Sequence[Service], settings: Sequence[Setting]) -> None:
    """Raise ValueError when a service names a setting that the kit does not have, or not of the right form."""
    forms = {setting.name: setting.form for setting in settings}
    for service in services:
        if service.hosts_from is not None and forms.get(service.hosts_from) != "https-address":
            raise ValueError(
                f"service {service.name}: hosts_from has to name a setting of form https-address"
            )
        if service.when is not None and service.when.setting not in forms:
            raise ValueError(f"service {service.name}: when names no setting of the kit")
