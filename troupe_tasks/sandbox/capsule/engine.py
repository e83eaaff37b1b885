"""What the capsule asks of an engine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from troupe_tasks import process
from troupe_tasks.sandbox.capsule.saved import Saved
from troupe_tasks.sandbox.protocol import Isolation

BASE_ENV = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/state",
    "LANG": "C.UTF-8",
    "TMPDIR": "/tmp",
}


@dataclass(frozen=True)
class Running:
    """A run that the engine knows of."""

    alive: bool
    started_at: datetime | None


@dataclass(frozen=True)
class Entry:
    """A host command that runs something inside.

    `report_fd`, when the engine has one, is a descriptor to pass on: it is written to only once the command inside
    has begun, so that the engine's own failure is told from a status.
    """

    argv: list[str]
    report_fd: int | None = None

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command, its three pipes to be pumped."""
        return process.piped(self.argv, pass_fds=() if self.report_fd is None else (self.report_fd,))

    def close(self) -> bool:
        """Close the report and tell whether the command inside had begun."""
        if self.report_fd is None:
            return True
        try:
            return os.fstat(self.report_fd).st_size > 0
        finally:
            os.close(self.report_fd)


class Engine(Protocol):
    """One way of running a capsule."""

    isolation: Isolation

    def check(self) -> None:
        """Raise NotReady, with what to do, when this engine can't run here."""
        ...

    def runs(self) -> dict[str, Running]:
        """Return every run that this engine knows of, by name, with one call."""
        ...

    def start(self, saved: Saved, folder: Path, groups: tuple[Path, ...]) -> None:
        """Start a sandbox that is not running."""
        ...

    def ask_to_end(self, saved: Saved, *, deadline_s: float) -> None:
        """Ask a run to end and wait for it; return at the deadline whether or not it did."""
        ...

    def clear(self, sandbox_id: str) -> None:
        """Forget an ended run, ending what is left of it; nothing there is fine."""
        ...

    def enter(
        self, saved: Saved, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, report: bool, tty: bool
    ) -> Entry:
        """Return the host command that runs argv inside."""
        ...

    def hold(
        self, saved: Saved, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, folder: Path
    ) -> list[str]:
        """Return the host command that holds argv open inside and passes INT and TERM on to it."""
        ...

    def own_failure(self, status: int, stderr: bytes, *, began: bool) -> int | str:
        """Return the status of the command inside, or the engine's own words when it failed itself."""
        ...

    def pids(self, saved: Saved) -> tuple[int, ...]:
        """Return the host processes of a run."""
        ...
