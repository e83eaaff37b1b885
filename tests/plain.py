"""A driver without a sandbox: the real guest programs as plain processes, over a test's own folders.

It keeps the protocol's word on caps and deadlines by the real pump, and nothing else: what it runs is the tests' own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from troupe_tasks import process
from troupe_tasks.errors import SandboxFailed, SandboxTimeout
from troupe_tasks.sandbox import stream as streaming
from troupe_tasks.sandbox.protocol import GUEST_DIR, WORKSPACE, Ran, Sandboxes, Streamed

ROOT = Path(__file__).parents[1]


class Plain:
    """Its /state and /workspace are folders below root; its guest programs a copy that a test may change."""

    def __init__(self, root: Path) -> None:
        self.root, self.guest = root, root / "guest"
        for name in ("state", "workspace", "tmp"):
            (root / name).mkdir(parents=True)
        shutil.copytree(ROOT / "guest", self.guest, ignore=shutil.ignore_patterns("__pycache__"))

    def driver(self) -> Sandboxes:
        return cast("Sandboxes", self)

    def words(self, argv: Sequence[str]) -> list[str]:
        places = {"/state": str(self.root / "state"), "/workspace": str(self.root / "workspace")}
        places["/usr/bin/python3"] = sys.executable
        return [places.get(word, word.replace(GUEST_DIR, str(self.guest))) for word in argv]

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
        kept = streaming.Kept()
        done = self._pumped(argv, stdin, kept, cap_bytes, deadline_s, stop_at_cap=False)
        return Ran(status=done.status, stdout=kept.value(), stderr=done.stderr, truncated=done.truncated)

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
        done = self._pumped(
            argv, source or b"", sink, cap_bytes, deadline_s, stop_at_cap=True, stall_s=stall_s
        )
        return Streamed(status=done.status, bytes=done.bytes, sha256=done.sha256)

    def _pumped(
        self,
        argv: Sequence[str],
        source: BinaryIO | bytes,
        sink: BinaryIO | streaming.Kept | None,
        cap_bytes: int,
        deadline_s: float,
        *,
        stop_at_cap: bool,
        stall_s: float | None = None,
    ) -> streaming.Pumped:
        pipe = subprocess.PIPE
        env = {"TMPDIR": str(self.root / "tmp")}
        child = process.spawn(self.words(argv), env=env, stdin=pipe, stdout=pipe, stderr=pipe)
        done = streaming.pump(
            child, source=source, sink=sink, cap_bytes=cap_bytes, deadline_s=deadline_s, stop_at_cap=stop_at_cap,
            stall_s=stall_s,
        )  # fmt: skip
        if done.over:
            raise SandboxFailed(f"past its cap of {cap_bytes} bytes")
        if done.late:
            raise SandboxTimeout("stood still" if done.stuck else "late")
        return done
