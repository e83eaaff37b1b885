"""Measure `troupe create` with a warm kit image against the runtime's own start plus one raw turn of Hermes.

Goal: at most 1.2. Run: TROUPE_TEST_HOME=HOME python tests/bench/bench_create.py [--rounds N] [--strict]. Ours is
the whole command, from the shell to its exit. The raw side starts the very bundle that the driver wrote, on a
fresh copy of a furnished disk, by plain subprocess, and runs Hermes once in it through the same broker.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.bench import stage
from troupe_tasks import journal, process
from troupe_tasks.host import cgroups
from troupe_tasks.kits import compose
from troupe_tasks.operations import create
from troupe_tasks.operations.delete import delete
from troupe_tasks.operations.house import House
from troupe_tasks.operations.selftest import PROMPT
from troupe_tasks.sandbox.capsule import saved
from troupe_tasks.sandbox.capsule.driver import Capsule
from troupe_tasks.sandbox.protocol import Isolation

GOAL = 1.2
RAW, OURS = "bench-raw", "bench-ours"
_USAGE = "/tmp/usage.json"


@dataclass(frozen=True)
class Raw:
    """What the raw side needs: the start and turn commands, and the disk that each start gets a copy of."""

    house: House
    start: list[str]
    turn: list[str]
    proof: list[str]
    group: str
    limits: cgroups.Limits
    disk: Path
    fresh: Path

    def took_s(self) -> tuple[float, float]:
        """Start the sandbox and run one turn in it; return how long each took."""
        subprocess.run(["cp", "--sparse=always", self.fresh, self.disk], check=True)
        groups = cgroups.make(self.group, self.limits)
        try:
            begun = time.perf_counter()
            _run(self.start)
            started = time.perf_counter()
            _run(self.turn)
            ended = time.perf_counter()
            usage = json.loads(_run(self.proof))
            assert usage["completed"] is True, usage
        finally:
            self.house.driver("capsule").stop(RAW, deadline_s=5)
            cgroups.remove(groups)
        return started - begun, ended - started


def _run(argv: list[str]) -> bytes:
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout


def booted(job: create.Job) -> tuple[list[str], str, cgroups.Limits]:
    """Start the sandbox as create does; return the command that did it, its control group's name and limits."""
    noted: list[list[str]] = []
    grouped: list[tuple[str, cgroups.Limits]] = []
    run, make = process.run, cgroups.make

    def note_run(argv: Any, **options: Any) -> process.Done:
        noted.append([str(word) for word in argv])
        return run(argv, **options)

    def note_make(name: str, limits: cgroups.Limits) -> tuple[Path, ...]:
        grouped.append((name, limits))
        return make(name, limits)

    process.run, cgroups.make = note_run, note_make
    try:
        create.boot(job, {})
    finally:
        process.run, cgroups.make = run, make
    return next(argv for argv in noted if "-bundle" in argv), *grouped[-1]


def prepared(house: House) -> Raw:
    """Furnish a sandbox as create does, note the commands of it, and keep its disk as it is then."""
    job = stage.job(house, RAW)
    for step in (create.reserve, create.build_image, create.open_egress, create.make_sandbox):
        step(job, {})
    start, group, limits = booted(job)
    create.furnish(job, {})
    driver, kept = house.driver("capsule"), saved.load(house.paths, RAW)
    assert isinstance(driver, Capsule)
    driver.stop(RAW, deadline_s=5)
    disk = saved.disk(house.paths, kept)
    fresh = disk.with_name("disk.fresh")
    subprocess.run(["cp", "--sparse=always", disk, fresh], check=True)

    def inside(*argv: str) -> list[str]:
        engine, env = driver._engines[kept.isolation], driver._env(kept, None)
        return engine.enter(kept, argv, env=env, cwd=compose.WORKSPACE, report=False, tty=False).argv

    asked = (word.replace("{message}", PROMPT) for word in job.wish.kit.commands.self_test)
    turn = inside(*(word.replace("{usage}", _USAGE) for word in asked))
    return Raw(house, start, turn, inside("cat", _USAGE), group, limits, disk, fresh)


def ours_s(house: House, steps: list[dict[str, float]]) -> float:
    """Create an agent by the command, note what each step took, and delete it again."""
    spent, begun = stage.cpu_s(), time.perf_counter()
    stage.create(OURS)
    took = time.perf_counter() - begun
    cpu = stage.cpu_s() - spent
    receipts = journal.Journal(house.paths, OURS).receipts
    at = [datetime.fromisoformat(receipt.at) for receipt in receipts]
    spans = {receipts[n].step: (at[n] - at[n - 1]).total_seconds() for n in range(1, len(at))}
    steps.append({"CPU of troupe's side": cpu, "outside the steps": took - sum(spans.values()), **spans})
    delete(house, OURS, told=lambda _line: None)
    return took


def main() -> int:
    """Print both medians, where the time goes, and the median ratio of the pairs."""
    asked = stage.asked(__doc__, rounds=5)
    with stage.house() as house:
        if house.driver("capsule").isolation() is not Isolation.GVISOR:
            print("not measured: the raw side is gVisor's runsc, which does not run here")
            return 0
        raw = prepared(house)
        steps: list[dict[str, float]] = []
        ours_s(house, steps)  # the broker, the model and the page cache are warm from here on
        raw.took_s()
        steps.clear()
        pairs, parts = [], []
        for number in range(asked.rounds):
            if number % 2:
                part = raw.took_s()
                pairs.append((ours_s(house, steps), sum(part)))
            else:
                took = ours_s(house, steps)
                part = raw.took_s()
                pairs.append((took, sum(part)))
            parts.append(part)
    ours, theirs = ([pair[side] for pair in pairs] for side in (0, 1))
    print(f"{stage.told('create', ours)}; {stage.told('raw', theirs)}")
    start, turn = (statistics.median(part[side] for part in parts) for side in (0, 1))
    print(f"  raw: start {start:.2f} s, turn {turn:.2f} s")
    for name in steps[0]:
        print(f"  create: {name} {statistics.median(one[name] for one in steps):.2f} s")
    return stage.judged("create", stage.paired(pairs), goal=GOAL, strict=asked.strict)


if __name__ == "__main__":
    sys.exit(main())
