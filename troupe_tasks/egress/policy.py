"""What one agent may reach: its policy file, strictly read, and the verdict on a place.

| mode | lets through |
| --- | --- |
| balanced | every rule of the agent's kit and every host of its services |
| locked | only the rules and services that are model providers |
| open | any public name or address, on ports 80 and 443, and every rule |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from troupe_tasks import durable, strict
from troupe_tasks.egress import target
from troupe_tasks.egress.verdict import Refusal
from troupe_tasks.errors import StateUnreadable
from troupe_tasks.paths import Paths

REHEARSAL_HOST = "model.rehearsal.internal"
REHEARSAL_URL = f"http://{REHEARSAL_HOST}/v1"
SOCKET_NAME = "broker.sock"
TLS_PORT = 443
_OPEN_PORTS = (80, 443)
# Names that mean something on this machine or its network only (RFC 6761, RFC 6762, ICANN's .internal).
_LOCAL_ENDS = (
    ".internal",
    ".local",
    ".localhost",
    ".localdomain",
    ".home.arpa",
    ".lan",
    ".onion",
    ".test",
    ".invalid",
)

# Headers that two readers must agree on, or that are for one hop alone: no key goes there.
_NOT_FOR_KEYS = frozenset(
    {
        "connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization", "proxy-connection",
        "te", "trailer", "transfer-encoding", "upgrade",
    }
)  # fmt: skip

Port = Annotated[int, Field(ge=1, le=65535)]
Mode = Literal["balanced", "locked", "open"]
AgentId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$")]


def host_name(host: str) -> str:
    """Return a rule's host, exact or with a wildcard label, or raise ValueError."""
    bare = host.removeprefix("*.")
    if target.name(bare) != bare:
        raise ValueError("write host names in lower case")
    if bare.endswith(_LOCAL_ENDS):
        raise ValueError("this name means something on one network only")
    if host != bare and bare.count(".") < 1:
        raise ValueError("a wildcard needs at least two labels after it")
    return host


def _covers(rule: str, host: str) -> bool:
    return host.partition(".")[2] == rule[2:] if rule.startswith("*.") else host == rule


class HostRule(BaseModel):
    """One host that an agent may reach, on which ports, and who asked for it.

    `*.example.org` stands for exactly one label. model_provider marks what stays reachable when locked.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    host: str = Field(max_length=255)
    ports: tuple[Port, ...] = Field(default=(443,), min_length=1, max_length=16)
    origin: str = Field(min_length=1, max_length=100)
    model_provider: bool = False

    _plain_name = field_validator("host")(host_name)

    def covers(self, host: str, port: int) -> bool:
        """Tell whether the rule lets host and port through."""
        return port in self.ports and _covers(self.host, host)


class Place(BaseModel):
    """Where in a request a service's key belongs.

    bearer and basic use Authorization (basic: as user name or as password) and have no name; header and query
    name the header or the parameter.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    form: Literal["bearer", "basic", "header", "query"]
    name: str = Field(default="", max_length=64, pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]*$")

    @model_validator(mode="after")
    def _named_or_not(self) -> Place:
        if (self.form in {"header", "query"}) != bool(self.name):
            raise ValueError("header and query have a name, bearer and basic have none")
        if self.form == "header" and self.name.lower() in _NOT_FOR_KEYS:
            raise ValueError("this header frames the message")
        return self


class ServiceRule(BaseModel):
    """A service whose key is put in on the way out: in place of stand_in, at place, towards hosts, over TLS."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    service: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    hosts: tuple[Annotated[str, Field(max_length=255)], ...] = Field(min_length=1, max_length=16)
    place: Place
    stand_in: Annotated[str, StringConstraints(pattern=r"^[!-~]{16,200}$")]
    model_provider: bool = False

    @field_validator("hosts")
    @classmethod
    def _plain_names(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(host_name(host) for host in hosts)

    def host_rule(self, host: str, port: int) -> str | None:
        """Return which of the service's hosts covers a place, if any does."""
        if port != TLS_PORT:
            return None
        return next((rule for rule in self.hosts if _covers(rule, host)), None)


class EgressPolicy(BaseModel):
    """All that one agent may reach (egress/ID/policy.json)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    id: AgentId
    rehearsal: bool
    mode: Mode = "balanced"
    hosts: tuple[HostRule, ...] = Field(default=(), max_length=1000)
    services: tuple[ServiceRule, ...] = Field(default=(), max_length=50)

    @field_validator("services")
    @classmethod
    def _told_apart(cls, services: tuple[ServiceRule, ...]) -> tuple[ServiceRule, ...]:
        if len({rule.service for rule in services}) < len(services):
            raise ValueError("a service is there twice")
        if len({rule.stand_in for rule in services}) < len(services):
            raise ValueError("two services have the same stand-in")
        return services

    def ends_tls(self, place: target.Target) -> bool:
        """Tell whether the broker looks into a tunnel to place: wherever a stand-in could go over TLS."""
        return bool(self.services) and place.port == TLS_PORT


@dataclass(frozen=True)
class Grant:
    """Why a place is let through: the rule as written, and who asked for it."""

    rule: str
    origin: str
    rehearsal: bool = False


def decide(policy: EgressPolicy, place: target.Target, *, tunnel: bool) -> Grant:
    """Return why policy lets place through, or raise a Refusal."""
    if place.host == REHEARSAL_HOST:
        if policy.rehearsal and place.port == 80 and not tunnel:
            return Grant(REHEARSAL_HOST, "rehearsal", rehearsal=True)
        raise Refusal(
            403, "policy", "the rehearsal model is for rehearsal agents, over plain http on port 80"
        )
    if place.host.endswith(_LOCAL_ENDS):
        raise Refusal(403, "policy", "names of a local network are not reachable")
    for service in policy.services:
        if policy.mode != "locked" or service.model_provider:
            covering = service.host_rule(place.host, place.port)
            if covering is not None and tunnel:
                return Grant(covering, f"service {service.service}")
    for rule in policy.hosts:
        if (policy.mode != "locked" or rule.model_provider) and rule.covers(place.host, place.port):
            return Grant(rule.host, rule.origin)
    # Inside a tunnel to another port a stand-in would not be seen, so only a rule that names the port opens one.
    seen_through = not (tunnel and policy.services) or place.port == TLS_PORT
    if policy.mode == "open" and place.port in _OPEN_PORTS and seen_through:
        return Grant("*", "policy open")
    if place.is_address:
        raise Refusal(403, "policy", f"policy {policy.mode}: IP addresses are not reachable, only names")
    raise Refusal(403, "policy", f"policy {policy.mode}: this host and port are not on the agent's list")


def save(paths: Paths, policy: EgressPolicy) -> None:
    """Write an agent's policy, and make the folder its sandbox mounts; the broker takes it up at `reload`.

    The socket's folder is open to any user, because the sandbox's is one this machine does not know; the
    private folder around it keeps everybody else out.
    """
    folder = durable.make_private_dir(paths.egress(policy.id))
    socket_folder = folder / "socket"
    if not socket_folder.is_dir():
        durable.make_private_dir(socket_folder)
    socket_folder.chmod(0o755)
    durable.write(folder / "policy.json", policy.model_dump_json(indent=1).encode() + b"\n")


def load(paths: Paths, agent_id: str) -> EgressPolicy:
    """Return an agent's policy; raises FileNotFoundError or StateUnreadable."""
    path = paths.egress(agent_id) / "policy.json"
    policy = strict.parse(EgressPolicy, durable.read_private(path), place=path)
    if policy.id != agent_id:
        raise StateUnreadable(f"{path} is the policy of another agent, {policy.id}")
    return policy


def remove(paths: Paths, agent_id: str) -> None:
    """Remove an agent's policy and its socket's folder; nothing there is fine."""
    durable.remove_tree(paths.egress(agent_id))
