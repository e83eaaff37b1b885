"""An agent's record: what it is, for life (agents/ID/source.json), and the last self-test beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from troupe_tasks import durable, strict
from troupe_tasks.errors import NotFound, StateUnreadable
from troupe_tasks.names import is_id
from troupe_tasks.paths import Paths
from troupe_tasks.text import line

KeyTier = Literal["none", "tpm", "host-key", "file"]
Policy = Literal["balanced", "locked", "open"]


class KitPin(BaseModel):
    """The kit an agent was composed from: never `latest`. One from a registry has the digest of its manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    type: str = Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")
    version: str = Field(pattern=r"^[0-9]{1,5}\.[0-9]{1,5}\.[0-9]{1,5}$")
    digest: str | None = Field(default=None, pattern=r"^sha256:[0-9a-f]{64}$")


class Sizes(BaseModel):
    """What an agent was given: CPUs, memory, disk, and where its driver makes one, a disk for Docker."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    cpus: int = Field(ge=1, le=4096)
    memory_mib: int = Field(ge=64)
    storage_mib: int = Field(ge=64)
    docker_mib: int = Field(default=0, ge=0)

    @property
    def disk_mib(self) -> int:
        """Return both disks."""
        return self.storage_mib + self.docker_mib


class Record(BaseModel):
    """One agent on this machine."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1] = 1
    id: str
    name: str
    kit: KitPin
    driver: str = Field(pattern=r"^(sbx|capsule)$")
    isolation: str
    rehearsal: bool
    key_tier: KeyTier
    policy: Policy = "balanced"
    sizes: Sizes
    move: int = Field(default=0, ge=0)
    """How often it has moved into another sandbox."""
    moving_to: Sizes | None = None
    """The sizes of the sandbox that it is moving into: the machine's room holds both until the move has ended."""
    settings: Mapping[str, str] = Field(default_factory=dict)
    services: tuple[str, ...] = ()
    created_at: str
    wanted: Literal["up", "down"] = "up"

    @property
    def sandbox(self) -> str:
        """Return the ID of the sandbox that it lives in."""
        return sandbox_of(self.id, self.move)

    @property
    def reserved(self) -> Sizes:
        """Return what the machine keeps for it: the larger of what it has and what it is moving to."""
        there = self.moving_to or self.sizes
        return Sizes(
            cpus=max(self.sizes.cpus, there.cpus), memory_mib=max(self.sizes.memory_mib, there.memory_mib),
            storage_mib=max(self.sizes.storage_mib, there.storage_mib),
            docker_mib=max(self.sizes.docker_mib, there.docker_mib),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An agent whose record does not read, and why."""

    id: str
    error: StateUnreadable


class _Newer(BaseModel):
    """As much of a newer troupe's record as tells that it is one."""

    model_config = ConfigDict(frozen=True, strict=True)

    format: int = Field(gt=1, le=1_000_000)


def sandbox_of(agent_id: str, move: int) -> str:
    """Return the ID of an agent's first sandbox, or of the one after a move; no agent's ID has two hyphens in a row."""
    return f"{agent_id}--{move}" if move else agent_id


def move_of(sandbox_id: str) -> int:
    """Return how many sandboxes its agent had before a sandbox."""
    number = sandbox_id.partition("--")[2]
    return int(number) if number.isdecimal() else 0


def agent_of(sandbox_id: str) -> str:
    """Return the ID of the agent that a sandbox was made for."""
    return sandbox_id.partition("--")[0]


class SelfTest(BaseModel):
    """How the agent's last self-test went."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    at: str
    passed: bool
    cause: str = Field(default="", max_length=500)
    reply: str = Field(default="", max_length=4000)
    model: str = Field(default="", max_length=200)


def save(paths: Paths, record: Record) -> None:
    """Write a record, durably."""
    durable.make_private_dir(paths.agent(record.id))
    durable.write(paths.record(record.id), record.model_dump_json(indent=1).encode() + b"\n")


def load(paths: Paths, agent_id: str) -> Record:
    """Return an agent's record; raises NotFound or StateUnreadable."""
    found = find(paths, agent_id)
    if found is None:
        raise NotFound(f"there is no agent {agent_id}")
    return found


def find(paths: Paths, agent_id: str) -> Record | None:
    """Return an agent's record, or None; raises StateUnreadable."""
    path = paths.record(agent_id)
    hint = f"Put the file back from a copy of yours, or give the agent up: `troupe delete {agent_id}`."
    try:
        data = durable.read_private(path)
    except FileNotFoundError:
        return None
    except StateUnreadable as error:
        error.hint = hint
        raise
    _refuse_newer(data, path)
    record = strict.parse(Record, data, place=path, hint=hint)
    if record.id != agent_id:
        raise StateUnreadable(f"{path} is the record of another agent, {line(record.id, 80)}", hint=hint)
    return record


def _refuse_newer(data: bytes, path: Path) -> None:
    try:
        found = _Newer.model_validate_json(data).format
    except ValidationError:
        return
    raise StateUnreadable(
        f"{path} was written by a newer troupe", cause=f"it has format {found}, and this troupe reads format 1",
        hint="`troupe update` brings this one up to date.",
    )  # fmt: skip


def load_all(paths: Paths) -> tuple[list[Record], list[Unreadable]]:
    """Return every agent's record, by ID, and the agents whose records do not read: these hide no other."""
    recorded: list[Record] = []
    unreadable: list[Unreadable] = []
    folders = sorted(paths.agents.iterdir()) if paths.agents.is_dir() else []
    for agent_id in (folder.name for folder in folders if is_id(folder.name) and folder.is_dir()):
        try:
            found = find(paths, agent_id)
        except StateUnreadable as error:
            unreadable.append(Unreadable(agent_id, error))
        else:
            recorded += [found] if found else []
    return recorded, unreadable


def save_self_test(paths: Paths, agent_id: str, result: SelfTest) -> None:
    """Write how a self-test went, durably."""
    durable.write(paths.agent(agent_id) / "self-test.json", result.model_dump_json(indent=1).encode() + b"\n")


def last_self_test(paths: Paths, agent_id: str) -> SelfTest | None:
    """Return how the last self-test went, or None."""
    path = paths.agent(agent_id) / "self-test.json"
    try:
        return strict.parse(SelfTest, durable.read_private(path), place=path)
    except FileNotFoundError:
        return None
