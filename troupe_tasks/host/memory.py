"""Read how much memory this process may use: the machine's (`free -m`), or its control group's limit."""

from __future__ import annotations

from pathlib import Path

from troupe_tasks.host.quota import groups, number_of, text_of


def total_mib(*, root: Path = Path("/")) -> int | None:
    """Return the machine's memory, or a smaller limit of the groups around this process; None: unreadable."""
    machine = _machine_mib(text_of(root / "proc/meminfo"))
    limits = [
        limit >> 20
        for group in groups("memory", root=root)
        if (
            limit := number_of(
                group.folder / ("memory.limit_in_bytes" if group.version == 1 else "memory.max")
            )
        )
    ]
    figures = limits if machine is None else [machine, *limits]
    # Version 1 writes "no limit" as about 2**63: without the machine's figure that is no answer.
    smallest = min(figures, default=None)
    return smallest if machine is not None or (smallest or 1 << 40) < 1 << 40 else None


def _machine_mib(meminfo: str) -> int | None:
    for row in meminfo.splitlines():
        fields = row.split()
        if len(fields) == 3 and fields[0] == "MemTotal:" and fields[1].isdigit():
            return int(fields[1]) >> 10
    return None
