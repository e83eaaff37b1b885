"""The log of what one agent asked for: a line a request, never a path, query, header or body.

The file is private, turned over at 5 MiB, three old ones kept; a flood of lines is counted, not written.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from troupe_tasks import durable
from troupe_tasks.egress.verdict import Verdict
from troupe_tasks.text import line

TURNOVER_BYTES = 5 * 1024 * 1024
KEPT = 3
_LINES_PER_S = 50.0
_BURST = 500.0


@dataclass
class Entry:
    """One request, filled in while it is served; sent and received are seen from the agent."""

    method: str = ""
    host: str = ""
    port: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    status: int = 0
    verdict: Verdict = "allowed"
    rule: str = ""
    origin: str = ""
    why: str = ""
    is_covered: bool = False  # the requests that a tunnel carried have lines of their own


class AuditLog:
    """An agent's audit log, appended to by the broker alone."""

    def __init__(self, folder: Path, *, turnover_bytes: int = TURNOVER_BYTES) -> None:
        self.path = durable.make_private_dir(folder) / "egress.jsonl"
        self._turnover_bytes = turnover_bytes
        self._budget, self._at, self._left_out = _BURST, time.monotonic(), 0
        self._handle = self._open()

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self.path, flags, 0o600)

    def write(self, entry: Entry, *, ms: float) -> None:
        """Append a request; a full disk loses the line, never the request."""
        now = time.monotonic()
        self._budget = min(_BURST, self._budget + (now - self._at) * _LINES_PER_S)
        self._at = now
        if self._budget < 1:
            self._left_out += 1
            return
        self._budget -= 1
        fields: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "method": line(entry.method, 20),
            "host": line(entry.host, 255),
            "port": entry.port,
            "sent_bytes": entry.sent_bytes,
            "received_bytes": entry.received_bytes,
            "status": entry.status,
            "ms": round(ms, 1),
            "verdict": entry.verdict,
            "rule": entry.rule,
            "origin": entry.origin,
            "why": line(entry.why, 200),
        }
        if self._left_out:
            fields["lines_left_out_before"], self._left_out = self._left_out, 0
        self._append(json.dumps(fields).encode() + b"\n")

    def _append(self, data: bytes) -> None:
        try:
            if os.fstat(self._handle).st_size + len(data) > self._turnover_bytes:
                self._turn_over()
            os.write(self._handle, data)
        except OSError:
            self._left_out += 1

    def _turn_over(self) -> None:
        for number in range(KEPT, 0, -1):
            older = self.path.with_name(f"{self.path.name}.{number}")
            newer = self.path.with_name(f"{self.path.name}.{number - 1}") if number > 1 else self.path
            if newer.exists():
                newer.replace(older)
        fresh = self._open()
        os.close(self._handle)
        self._handle = fresh

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)
