"""Measure the down-time of `troupe resize` against what no move can do without. Goal: at most 1.1.

Run: TROUPE_TEST_HOME=HOME python tests/bench/bench_move.py [--rounds N] [--strict]; MIB (512) fills its workspace.
Ours is from the receipt before the gateway is stopped to the one after it was started in the new sandbox. The raw side
stops the same gateway and sandbox, starts that alone, streams the agent's folders out with plain tar and syncs the
file, stops it, starts a fresh one, streams the file in with plain tar and syncs, and runs one turn of Hermes.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, cast

from tests.bench import stage
from troupe_tasks import config, durable, journal
from troupe_tasks import record as records
from troupe_tasks.kits import image
from troupe_tasks.operations import gateway, moving, outfit
from troupe_tasks.operations.house import House
from troupe_tasks.operations.selftest import judged

GOAL = 1.1
ID = "bench-move"
MIB = int(os.environ.get("MIB", "512"))
_HOURS_S = 4 * 3600.0
_FILL = "i=0; while [ $i -lt {} ]; do head -c 16777216 /dev/urandom > /workspace/$i || exit 1; i=$((i+1)); done; sync"
_OUT = ("tar", "--create", "--file=-", "--directory=/", "state", "workspace")
_IN = ("sh", "-c", "tar --extract --file=- --directory=/ --no-same-owner --no-overwrite-dir; sync")


def ours_s(house: House, parts: list[dict[str, float]]) -> float:
    """Move the agent by the command and return its down-time, from its receipts."""
    words = stage.command("resize", ID, "--force")
    subprocess.run(words, cwd=stage.ROOT, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    receipts = journal.Journal(house.paths, ID).receipts
    begun = max(number for number, receipt in enumerate(receipts) if receipt.step == "begin")
    at = {receipt.step: datetime.fromisoformat(receipt.at) for receipt in receipts[begun:]}
    names = list(at)
    between = names[names.index("image") : names.index("go-on") + 1]
    spans = {name: (at[name] - at[before]).total_seconds() for before, name in pairwise(between)}
    parts.append(spans)
    return sum(spans.values())


def raw_s(house: House, file: Path, parts: list[dict[str, float]]) -> float:
    """Do what a move can't do without, by hand, and return how long it took; the agent is as before afterwards."""
    record = records.load(house.paths, ID)
    there = record.model_copy(update={"move": record.move + 1})
    driver, kit = house.driver("capsule"), stage.kit()
    spent: dict[str, float] = {}

    def timed(name: str, body: Callable[[], object]) -> None:
        begun = time.perf_counter()
        body()
        spent[name] = time.perf_counter() - begun

    def out() -> None:
        with durable.fresh(file) as sink:
            driver.stream(
                record.sandbox, _OUT, sink=cast("BinaryIO", sink), cap_bytes=1 << 40, deadline_s=_HOURS_S
            )

    def boot() -> None:
        root = image.ensure_image(kit, house.paths, print).path
        driver.create(outfit.spec(house, there, kit, image=root))
        driver.start(there.sandbox)

    def back() -> None:
        with file.open("rb", buffering=0) as source:
            driver.stream(there.sandbox, _IN, source=source, cap_bytes=1 << 40, deadline_s=_HOURS_S)

    timed("end the gateway", lambda: moving.end_work(house, record, record.sandbox))
    timed("start", lambda: driver.start(record.sandbox))
    timed("tar out", out)
    timed("stop", lambda: driver.stop(record.sandbox, deadline_s=20))
    timed("boot", boot)
    timed("tar in", back)
    timed("turn", lambda: judged(house, there, kit))
    driver.remove(there.sandbox)
    driver.start(record.sandbox)
    timed("start the gateway", lambda: gateway.start(house, record))
    parts.append(spent)
    return sum(spent.values())


def main() -> int:
    """Print both medians, where the time goes, and the median ratio of the pairs."""
    asked = stage.asked(__doc__, rounds=3)
    with stage.house() as house:
        config.put(house.paths, "reserve", "1")
        sizes = ("--cpu=2", "--memory=2", f"--storage={2 + MIB // 256}", "--force")
        words = stage.command("create", "hermes", "--name", ID, "--rehearsal", *sizes)
        subprocess.run(words, cwd=stage.ROOT, stdin=subprocess.DEVNULL, capture_output=True, check=True)
        house.driver("capsule").run(ID, ["sh", "-c", _FILL.format(MIB // 16)], deadline_s=_HOURS_S)
        file = house.paths.state / "bench.tar"
        ours_parts: list[dict[str, float]] = []
        raw_parts: list[dict[str, float]] = []
        pairs = []
        for number in range(asked.rounds + 1):
            theirs = raw_s(house, file, raw_parts)
            pairs.append((ours_s(house, ours_parts), theirs))
            if not number:  # the first of each finds caches cold
                for kept in (pairs, ours_parts, raw_parts):
                    kept.clear()
    ours, bare = ([pair[side] for pair in pairs] for side in (0, 1))
    print(f"{MIB} MiB: {stage.told('down-time', ours)}; {stage.told('raw', bare)}")
    for name, parts in (("raw", raw_parts), ("resize", ours_parts)):
        medians = (f"{key} {statistics.median(one[key] for one in parts):.2f} s" for key in parts[0])
        print(f"  {name}: {', '.join(medians)}")
    return stage.judged("resize, down-time", stage.paired(pairs), goal=GOAL, strict=asked.strict)


if __name__ == "__main__":
    sys.exit(main())
