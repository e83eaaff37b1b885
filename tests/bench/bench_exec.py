"""Measure `true` in a running capsule through the protocol against the runtime's own exec. Goal: at most 1.15.

Run: TROUPE_TEST_HOME=HOME python tests/bench/bench_exec.py [--rounds N] [--strict]. The raw side is the very
command that the driver starts, same program, flags and environment, by plain subprocess; pairs are interleaved.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from tests.bench import stage
from troupe_tasks.kits import compose
from troupe_tasks.operations import create
from troupe_tasks.operations.house import House
from troupe_tasks.sandbox.capsule import saved
from troupe_tasks.sandbox.capsule.driver import Capsule

GOAL = 1.15
ID = "bench-exec"


def took_s(body: Callable[[], object]) -> float:
    """Return how long body takes."""
    begun = time.perf_counter()
    body()
    return time.perf_counter() - begun


def raw_argv(house: House) -> list[str]:
    """Return the runtime's exec of the same command in the same sandbox, without what the driver adds."""
    driver, kept = house.driver("capsule"), saved.load(house.paths, ID)
    assert isinstance(driver, Capsule)
    engine = driver._engines[kept.isolation]
    env = driver._env(kept, None)
    return engine.enter(kept, ["true"], env=env, cwd=compose.WORKSPACE, report=False, tty=False).argv


def main() -> int:
    """Print both medians and the median ratio of the pairs."""
    asked = stage.asked(__doc__, rounds=60)
    with stage.house() as house:
        job = stage.job(house, ID)
        for step in (create.reserve, create.make_sandbox, create.boot):
            step(job, {})
        driver, argv = house.driver("capsule"), raw_argv(house)

        def ours() -> None:
            assert driver.run(ID, ["true"], deadline_s=30).status == 0

        def raw() -> None:
            subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=True)

        for warm_up in (ours, raw, ours, raw):
            warm_up()
        pairs = []
        for number in range(asked.rounds):
            if number % 2:  # neither side always comes second
                after = took_s(raw)
                pairs.append((took_s(ours), after))
            else:
                before = took_s(ours)
                pairs.append((before, took_s(raw)))
        isolation = saved.load(house.paths, ID).isolation.value
    mine, bare = ([pair[side] for pair in pairs] for side in (0, 1))
    print(
        f"{stage.told('exec through the protocol', mine)}; {stage.told('raw', bare)}; isolation {isolation}"
    )
    return stage.judged("exec", stage.paired(pairs), goal=GOAL, strict=asked.strict)


if __name__ == "__main__":
    sys.exit(main())
