"""A driver without a sandbox: the real guest programs as plain processes, over a test's own folders.

It keeps the protocol's word on caps and deadlines by the real pump, and nothing else: what it runs is the tests' own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from troupe_tasks import process
from troupe_tasks.errors import SandboxFailed, SandboxTimeout
from troupe_tasks.sandbox.commands import Commands
from troupe_tasks.sandbox.protocol import GUEST_DIR, Sandboxes
from troupe_tasks.sandbox.stream import Flow, Pumped, pump

ROOT = Path(__file__).parents[1]


class Plain(Commands):
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

    def _exec(
        self, sandbox_id: str, argv: Sequence[str], flow: Flow, *, env: Mapping[str, str] | None, cwd: str
    ) -> Pumped:
        pipe = subprocess.PIPE
        place = {"TMPDIR": str(self.root / "tmp")}
        child = process.spawn(self.words(argv), env=place, stdin=pipe, stdout=pipe, stderr=pipe)
        done = pump(child, flow)
        if done.over:
            raise SandboxFailed(f"past its cap of {flow.cap_bytes} bytes")
        if done.late:
            raise SandboxTimeout("stood still" if done.stuck else "late")
        return done
