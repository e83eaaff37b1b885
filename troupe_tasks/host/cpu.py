"""Count the CPU threads that this process may use, as `nproc` and the control groups' quotas say."""

from __future__ import annotations

import os
from pathlib import Path

from troupe_tasks.host.quota import Group, groups, number_of, text_of


def usable_threads(*, root: Path = Path("/"), affinity: int | None = None) -> int | None:
    """Return the threads in this process's affinity, less where a group's quota allows fewer; at least 1.

    A quota of 2.5 CPUs counts as 2. None where the system does not tell the affinity.
    """
    if affinity is None:
        try:
            affinity = len(os.sched_getaffinity(0))
        except OSError:
            return None
    quotas = [quota for group in groups("cpu", root=root) if (quota := _quota_cpus(group)) is not None]
    return max(1, min([affinity, *quotas]))


def _quota_cpus(group: Group) -> int | None:
    """Return the whole CPUs that one group's quota allows, or None where it sets none."""
    if group.version == 1:
        quota = number_of(group.folder / "cpu.cfs_quota_us")
        period = number_of(group.folder / "cpu.cfs_period_us")
    else:
        fields = text_of(group.folder / "cpu.max").split()
        numbers = [int(field) if field.isascii() and field.isdigit() else None for field in fields]
        quota, period = numbers if len(numbers) == 2 else (None, None)
    return quota // period if quota and period else None
