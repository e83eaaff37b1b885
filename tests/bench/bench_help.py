"""Measure `./troupe --help` against bare `invoke --version`, turn by turn in one run. Goal: at most 1.3."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROUNDS = 15
GOAL = 1.3


def took_s(argv: list[str], *, cwd: Path) -> float:
    """Return how long one run takes, or stop where it fails."""
    begun = time.perf_counter()
    subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, cwd=cwd, check=True)
    return time.perf_counter() - begun


def main() -> int:
    """Print both medians and their ratio; the status says if it is within the goal."""
    ours, theirs = [f"{ROOT}/troupe", "--help"], [f"{ROOT}/.venv/bin/invoke", "--version"]
    took_s(ours, cwd=ROOT)
    took_s(theirs, cwd=ROOT)
    pairs = [(took_s(ours, cwd=ROOT), took_s(theirs, cwd=ROOT)) for _ in range(ROUNDS)]
    mine, bare = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = mine / bare
    print(f"troupe --help {mine * 1000:.0f} ms, invoke --version {bare * 1000:.0f} ms")
    print(f"ratio {ratio:.2f} (goal {GOAL})")
    return 0 if ratio <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
