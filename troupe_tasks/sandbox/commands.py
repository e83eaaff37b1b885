"""The two ways in which every driver runs a command inside, over the one way that is the driver's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from troupe_tasks.sandbox.protocol import WORKSPACE, Ran, Streamed
from troupe_tasks.sandbox.stream import Flow, Kept, Pumped


class Commands(ABC):
    """`run` and `stream` of the protocol."""

    @abstractmethod
    def _exec(
        self, sandbox_id: str, argv: Sequence[str], flow: Flow, *, env: Mapping[str, str] | None, cwd: str
    ) -> Pumped:
        """Run a command inside to its end, argv verbatim; raise what the protocol says of one that has none."""

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
        """Run a command inside to its end."""
        kept = Kept()
        flow = Flow(deadline_s=deadline_s, cap_bytes=cap_bytes, source=stdin, sink=kept)
        done = self._exec(sandbox_id, argv, flow, env=env, cwd=cwd)
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
        """Run a command inside as one end of a bulk transfer."""
        flow = Flow(
            deadline_s=deadline_s, cap_bytes=cap_bytes, source=source or b"", sink=sink, bulk=True, stall_s=stall_s
        )  # fmt: skip
        done = self._exec(sandbox_id, argv, flow, env=None, cwd=WORKSPACE)
        return Streamed(status=done.status, bytes=done.bytes, sha256=done.sha256)
