"""Measure an archive of large files against `cat | sha256sum` of them in the same sandbox. Goal: 0.9 of its speed.

Run: TROUPE_TEST_HOME=HOME python tests/bench/bench_archive.py [--rounds N] [--strict]; MIB (1024) is how much, so that
MIB=10240 shows the memory at 10 GiB. The archive goes to memory where there is room, since the disk's speed is not
ours; the disk is measured beside a plain write of as many bytes. Goal for memory: 32 MiB more at the end.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench import stage
from troupe_tasks import durable
from troupe_tasks.archives import disk, inside
from troupe_tasks.archives.model import Archive
from troupe_tasks.archives.put import put
from troupe_tasks.archives.take import take
from troupe_tasks.kits import image
from troupe_tasks.operations.house import House
from troupe_tasks.sandbox.protocol import Sandboxes, SandboxSpec, Sizes

GOAL = 1 / 0.9
MEMORY_GOAL_MIB = 32.0
ID = "bench-archive"
MIB = int(os.environ.get("MIB", "1024"))
_HOURS_S = 4 * 3600.0
_FILL = "i=0; while [ $i -lt {} ]; do head -c 134217728 /dev/urandom > /workspace/$i || exit 1; i=$((i+1)); done; sync"


class Nowhere:
    """A sink for what a command prints."""

    def write(self, data: bytes) -> int:
        """Drop it."""
        return len(data)


def sandbox(house: House) -> Sandboxes:
    """Return the driver, with a running sandbox that has room for the tree."""
    driver = house.driver("capsule")
    driver.create(SandboxSpec(
        id=ID, sizes=Sizes(cpus=2, memory_mib=1024, storage_mib=MIB + 8192),
        image=image.ensure_image(stage.kit(), house.paths, print).path, egress=house.paths.egress(ID) / "socket",
    ))  # fmt: skip
    driver.start(ID)
    return driver


def taken(driver: Sandboxes, folder: Path) -> Archive:
    """Archive the sandbox into a folder."""
    return take(
        driver,
        ID,
        folder,
        cap_bytes=1 << 40,
        reserve=lambda: 1 << 40,
        deadline_s=_HOURS_S,
        told=lambda _line: None,
    )


def took_s(body: Callable[[], object]) -> float:
    """Return how long body takes."""
    begun = time.perf_counter()
    body()
    return time.perf_counter() - begun


def peak_mib() -> float:
    """Return the most memory that this process ever had."""
    rows = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("VmHWM:")) / 1024


def write_plainly(path: Path, size_bytes: int) -> None:
    """Write and sync as many bytes, as fast as the disk takes them."""
    block = os.urandom(1 << 20)
    with durable.fresh(path) as file:
        for _ in range(size_bytes >> 20):
            file.write(block)


def main() -> int:
    """Print the speeds, the ratio and the memory."""
    asked = stage.asked(__doc__, rounds=3)
    with stage.house() as house:
        driver = sandbox(house)
        roomy = shutil.disk_usage("/dev/shm").free > (MIB + 2048) << 20
        near, far = (
            Path("/dev/shm" if roomy else house.paths.state) / f"{ID}-{os.getpid()}",
            house.paths.state / ID,
        )

        def raw() -> None:
            words = ["sh", "-c", "cat /workspace/* | sha256sum"]
            driver.stream(ID, words, sink=Nowhere(), cap_bytes=1000, deadline_s=_HOURS_S)  # type: ignore[arg-type]

        try:
            taken(driver, near)
            before_mib = peak_mib()
            driver.run(ID, ["sh", "-c", _FILL.format(MIB // 128)], deadline_s=_HOURS_S)
            raw()
            pairs = []
            for _ in range(asked.rounds):
                shutil.rmtree(near)
                raw_s = took_s(raw)
                pairs.append((took_s(lambda: taken(driver, near)), raw_s))
            grown_mib = peak_mib() - before_mib
            shutil.rmtree(near)
            to_disk_s = took_s(lambda: taken(driver, far))
            archive = disk.load(far)
            plain_s = took_s(lambda: write_plainly(far / "plain", archive.parts[0].bytes))
            (far / "plain").unlink()
            survey_s = took_s(lambda: inside.survey(driver, ID, deadline_s=_HOURS_S))
            rehash_s = took_s(lambda: disk.rehash(far, archive))
            put_s = took_s(
                lambda: put(driver, ID, far, archive, deadline_s=_HOURS_S, reserve=lambda: 1 << 40)
            )
        finally:
            shutil.rmtree(near, ignore_errors=True)
    ours, bare = ([pair[side] for pair in pairs] for side in (0, 1))
    print(f"{MIB} MiB, {'to memory' if roomy else 'to the disk'}: {stage.told('archive', ours)}")
    print(stage.told("cat | sha256sum", bare))
    print(f"to the disk {to_disk_s:.1f} s, a plain write {plain_s:.1f} s, read again {rehash_s:.1f} s")
    print(f"manifest {survey_s:.1f} s, restore with its proof {put_s:.1f} s")
    print(f"memory of the host's process: {grown_mib:+.0f} MiB (goal {MEMORY_GOAL_MIB:g})")
    heavy = asked.strict and grown_mib > MEMORY_GOAL_MIB
    return max(int(heavy), stage.judged("archive, time", stage.paired(pairs), goal=GOAL, strict=asked.strict))


if __name__ == "__main__":
    sys.exit(main())
