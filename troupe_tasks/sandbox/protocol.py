"""What any sandbox can be asked: the one vocabulary of every driver (docs/drivers.md tells how to write one).

Inside every sandbox: /state and /workspace are writable and kept, /tmp is private and lost at stop, the rest is
read-only, /run/troupe/egress/broker.sock is the only way out, and 127.0.0.1:3128 leads to it.
Callers hold the agent's lock; a driver needs none of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, BinaryIO, Protocol

from pydantic import BaseModel, ConfigDict, Field

from troupe_tasks.errors import SandboxGone
from troupe_tasks.record import agent_of

EGRESS_DIR = "/run/troupe/egress"
GUEST_DIR = "/run/troupe/guest"
PROXY_PORT = 3128
WORKSPACE = "/workspace"

Id = Annotated[str, Field(pattern=r"^[a-z0-9]+(--?[a-z0-9]+)*$", max_length=140)]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
EnvValue = Annotated[str, Field(max_length=32768, pattern=r"^[^\x00]*$")]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Isolation(Enum):
    """What stands between a sandbox and the host's kernel, strongest first."""

    KVM = "kvm"
    GVISOR = "gvisor"
    NAMESPACES = "namespaces"


class State(Enum):
    """What a sandbox is doing; BROKEN exists but can neither run nor be trusted to be whole."""

    RUNNING = "running"
    STOPPED = "stopped"
    MISSING = "missing"
    BROKEN = "broken"


class Sizes(_Frozen):
    """What a sandbox is given, at creation, for life; docker_mib is a disk of Docker's own, where there is one."""

    cpus: int = Field(ge=1, le=1024)
    memory_mib: int = Field(ge=64, le=1 << 24)
    storage_mib: int = Field(ge=16, le=1 << 28)
    docker_mib: int = Field(default=0, ge=0, le=1 << 28)
    processes: int = Field(default=512, ge=8, le=1 << 20)
    open_files: int = Field(default=4096, ge=64, le=1 << 20)

    @property
    def disk_mib(self) -> int:
        """Return both disks."""
        return self.storage_mib + self.docker_mib


class SandboxSpec(_Frozen):
    """What to make: a read-only root file system, the host folder of the broker's socket, and an environment."""

    id: Id
    sizes: Sizes
    image: Path
    egress: Path
    env: dict[EnvName, EnvValue] = Field(default_factory=dict, max_length=128)


class SandboxInfo(_Frozen):
    """One sandbox of a listing; `id` is None for one that is not troupe's."""

    name: str
    id: Id | None
    identity: str
    state: State
    sizes: Sizes | None
    isolation: Isolation | None
    started_at: datetime | None
    takes_room: bool = False
    """Whether its runtime runs it all the same, where its state tells of what it is good for."""


class Listing(_Frozen):
    """Every sandbox that the driver could see; when not `complete`, absence proves nothing."""

    complete: bool
    sandboxes: tuple[SandboxInfo, ...]

    def find(self, sandbox_id: str) -> SandboxInfo | None:
        """Return troupe's sandbox of this ID, or None."""
        return next((info for info in self.sandboxes if info.id == sandbox_id), None)


class LimitReport(_Frozen):
    """Whether one of the sizes really binds on this machine, and by what (or why not)."""

    resource: str
    binds: bool
    how: str


class Ran(_Frozen):
    """How a command inside ended: its own status, and what it printed, up to the cap."""

    status: int
    stdout: bytes
    stderr: bytes
    truncated: bool


class Streamed(_Frozen):
    """How a bulk transfer ended: the command's status, bytes moved out of the sandbox, and their SHA-256."""

    status: int
    bytes: int
    sha256: str


class Sandboxes(Protocol):
    """A driver. Every failure of its own is a TroupeError (SandboxFailed, NotReady), never a status."""

    name: str

    def isolation(self) -> Isolation:
        """Return what a sandbox made now would be isolated by; NotReady when none can be made."""
        ...

    def limits(self) -> tuple[LimitReport, ...]:
        """Return, for memory, cpus, processes, open_files and storage, whether the size binds here."""
        ...

    def list(self) -> Listing:
        """Return every sandbox, with one call of the runtime however many there are."""
        ...

    def create(self, spec: SandboxSpec) -> str:
        """Make a sandbox and return its identity; with the same spec again, finish or do nothing."""
        ...

    def start(self, sandbox_id: str) -> None:
        """Start a sandbox that exists, or do nothing; never make an empty one. SandboxGone if not there."""
        ...

    def stop(self, sandbox_id: str, *, deadline_s: float) -> None:
        """Stop everything inside, by force at the deadline; nothing running is fine."""
        ...

    def remove(self, sandbox_id: str) -> None:
        """Remove a sandbox and all it had on this machine; nothing there is fine."""
        ...

    def run(
        self,
        sandbox_id: str,
        argv: Sequence[str],
        *,
        deadline_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = WORKSPACE,
        cap_bytes: int = 1 << 20,
    ) -> Ran:
        """Run a command to its end, argv verbatim. SandboxTimeout at the deadline, with all it started killed."""
        ...

    def stream(
        self,
        sandbox_id: str,
        argv: Sequence[str],
        *,
        deadline_s: float,
        cap_bytes: int,
        sink: BinaryIO | None = None,
        source: BinaryIO | None = None,
        stall_s: float | None = None,
    ) -> Streamed:
        """Run a command with its stdin read from source and its stdout written to sink.

        SandboxFailed as soon as more than cap_bytes would be moved either way: nothing past the cap is written.
        SandboxTimeout at the deadline, and when no byte moved for stall_s, stderr included.
        """
        ...

    def attach(
        self,
        sandbox_id: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = WORKSPACE,
    ) -> int:
        """Give the operator's own terminal to a command inside, raw, and return its status."""
        ...

    def gateway_argv(self, sandbox_id: str, argv: Sequence[str], env: Mapping[str, str]) -> Sequence[str]:
        """Return a host command that holds argv open inside, passes SIGINT and SIGTERM on, and ends with its status.

        What an earlier gateway command left running inside is ended first.
        """
        ...

    def sizes(self, sandbox_id: str) -> Sizes:
        """Return a sandbox's sizes."""
        ...

    def forget_image(self, image: Path) -> None:
        """Remove what the driver made of an image that no sandbox has any more; nothing made of it is fine."""
        ...

    def pids(self, sandbox_id: str) -> tuple[int, ...]:
        """Return the host's process IDs of a running sandbox."""
        ...

    def disk_used_mib(self, sandbox_id: str, *, may_ask: bool = True) -> int:
        """Return what a sandbox's disk takes on the host; without may_ask nobody inside is asked."""
        ...


def not_running(sandbox_id: str) -> SandboxGone:
    """Return the error for a sandbox that has to run; its agent is what a person starts."""
    return SandboxGone(
        f"the sandbox {sandbox_id} is not running", hint=f"`troupe start {agent_of(sandbox_id)}` starts it."
    )
