"""When a process of this machine started, from the kernel (proc(5))."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path


def started_at(pid: int, *, proc: Path = Path("/proc")) -> datetime | None:
    """Return when a process started, or None when it is gone."""
    try:
        # The name in parentheses may hold anything, so count from its end: starttime is field 22.
        fields = (
            (proc / str(pid) / "stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()
        )
        ticks = int(fields[19])
        booted = next(
            int(line.split()[1])
            for line in (proc / "stat").read_text(encoding="ascii").splitlines()
            if line.startswith("btime ")
        )
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return datetime.fromtimestamp(booted + ticks / os.sysconf("SC_CLK_TCK"), UTC)
