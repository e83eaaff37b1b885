"""The limits of host/cgroups.py in a real version 2 hierarchy; run inside the guest, as root."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from troupe_tasks.host import cgroups


@pytest.fixture
def group() -> Iterator[Path]:
    folders = cgroups.make("limits", cgroups.Limits(memory_mib=64, cpus=1, processes=16))
    assert len(folders) == 1
    yield folders[0]
    cgroups.remove(folders)
    assert not folders[0].exists()
    assert not folders[0].parent.exists()


def inside(group: Path, *argv: str) -> subprocess.Popen[bytes]:
    enter = f'echo $$ > "{group}/cgroup.procs"; exec "$@"'
    return subprocess.Popen(["/bin/sh", "-c", enter, "sh", *argv], stderr=subprocess.PIPE)


def counted(file: Path, key: str) -> int:
    return int(dict(row.split() for row in file.read_text(encoding="ascii").splitlines())[key])


def test_the_hierarchy_is_version_2_and_every_limit_binds() -> None:
    assert {place.version for place in cgroups.hierarchies()} == {2}
    assert cgroups.binding() == {"memory", "cpus", "processes"}


def test_memory_over_the_limit_is_killed(group: Path) -> None:
    child = inside(group, sys.executable, "-I", "-S", "-c", "kept = bytearray(1); kept = b'x' * (200 << 20)")
    _, _ = child.communicate(timeout=120)
    assert child.returncode == -signal.SIGKILL
    assert counted(group / "memory.events", "oom_kill") >= 1


def test_memory_below_the_limit_is_not(group: Path) -> None:
    child = inside(group, sys.executable, "-I", "-S", "-c", "kept = b'x' * (20 << 20)")
    _, _ = child.communicate(timeout=120)
    assert child.returncode == 0


def test_one_process_too_many_is_refused(group: Path) -> None:
    child = inside(group, "/bin/sh", "-c", "for n in $(seq 40); do sleep 5 & done; wait")
    _, said = child.communicate(timeout=120)
    assert b"fork" in said.lower()
    assert counted(group / "pids.events", "max") >= 1


def test_two_busy_loops_share_one_cpu(group: Path) -> None:
    began = time.monotonic()
    busy = [inside(group, "/bin/sh", "-c", "while :; do :; done") for _ in range(2)]
    time.sleep(6)
    took_s = time.monotonic() - began
    used_s = counted(group / "cpu.stat", "usage_usec") / 1e6
    cgroups.kill((group,), deadline_s=20)
    for child in busy:
        child.communicate(timeout=20)
    print(f"{used_s:.2f} s of CPU in {took_s:.2f} s")
    assert used_s <= 1.15 * took_s
    assert counted(group / "cpu.stat", "nr_throttled") > 0
