"""When a process of this machine started, and what memory a program holds, from the kernel (proc(5))."""

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


def resident_mib(*words: str, proc: Path = Path("/proc")) -> int:
    """Return the memory of the processes whose command line begins with these words, a program's name first."""
    held_kib = 0
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if (argv[0].rpartition("/")[2], *argv[1 : len(words)]) == words:
                held_kib += _resident_kib((entry / "status").read_text(encoding="utf-8", errors="replace"))
        except OSError:  # it has ended, or is somebody's who hides it
            continue
    return -(-held_kib // 1024)


def _resident_kib(status: str) -> int:
    rows = (row.split() for row in status.splitlines() if row.startswith("VmRSS:"))
    return next((int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()), 0)
