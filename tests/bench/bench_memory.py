"""Measure the memory that an idle running agent takes on the host beyond Hermes itself, in MiB and as ratios.

Run: TROUPE_TEST_HOME=HOME python tests/bench/bench_memory.py [--strict]. Host figures are proportional set sizes
(shared pages are divided among those that share them); Hermes's own is the resident size that its kernel inside
the sandbox tells. Goal: what troupe adds to the runtime's own processes is at most a quarter of those.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tests.bench import stage
from troupe_tasks.names import BROKER, REHEARSAL
from troupe_tasks.operations.house import House, gateway_name
from troupe_tasks.services.protocol import Phase

ID = "bench-memory"
GOAL = 1.25
_IDLE_S = 60.0
_INSIDE = """\
import json, os, pathlib
rows = {}
for place in pathlib.Path("/proc").iterdir():
    if place.name.isdigit() and int(place.name) != os.getpid():
        fields = dict(row.split(":", 1) for row in (place / "status").read_text().splitlines() if ":" in row)
        words = (place / "cmdline").read_bytes().decode(errors="replace").split(chr(0))
        rows[place.name] = [int(fields.get("VmRSS", "0 kB").split()[0]), " ".join(words)]
print(json.dumps(rows))
"""


def pss_mib(pid: int) -> float:
    """Return a process's proportional set size."""
    for row in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if row.startswith("Pss:"):
            return int(row.split()[1]) / 1024
    raise RuntimeError(f"process {pid} tells no Pss")


def words(pid: int) -> str:
    """Return a process's command line."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                parent = int((place / "stat").read_bytes().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(place.name))
    found, fresh = [pid], [pid]
    while fresh:
        fresh = [child for one in fresh for child in parents.get(one, [])]
        found += fresh
    return found


def total_mib(pids: list[int]) -> float:
    """Return the sum of the processes that are there."""
    found = 0.0
    for pid in pids:
        try:
            found += pss_mib(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def runtime_pids(house: House) -> list[int]:
    """Return the runtime's processes of the sandbox, with those that carry the agent's own code."""
    own = [pid for pid in house.driver("capsule").pids(ID) if Path(f"/proc/{pid}").exists()]
    return sorted({pid for one in own for pid in family(one)})


def inside_mib(house: House) -> tuple[float, float]:
    """Return what Hermes, and what else runs inside, has resident by the sandbox's own account."""
    ran = house.driver("capsule").run(ID, ["/usr/bin/python3", "-I", "-c", _INSIDE], deadline_s=30)
    rows = json.loads(ran.stdout).values()
    hermes = sum(kib for kib, line in rows if "hermes" in line)
    return hermes / 1024, sum(kib for kib, line in rows if "hermes" not in line) / 1024


def wait_until_idle(house: House) -> None:
    """Wait until the gateway runs and the sandbox's memory stays the same for a while."""
    until, last, still = time.monotonic() + _IDLE_S, 0.0, 0
    while time.monotonic() < until and still < 3:
        now = total_mib(runtime_pids(house))
        running = house.services.states()[gateway_name(ID)].phase is Phase.RUNNING
        still = still + 1 if running and abs(now - last) < 0.02 * now else 0
        last = now
        time.sleep(1)


def main() -> int:
    """Print what each part takes, and the ratios."""
    asked = stage.asked(__doc__, rounds=1)
    with stage.house() as house:
        stage.create(ID)
        wait_until_idle(house)
        states = house.services.states()
        holder = states[gateway_name(ID)].pid
        assert holder is not None
        runtime = runtime_pids(house)
        client = [pid for pid in family(holder) if pid not in runtime]
        hermes, rest = inside_mib(house)
        held, ours = total_mib(runtime), total_mib(client)
        for pid in client:
            print(f"  client: {pss_mib(pid):6.1f} MiB  {words(pid)[:70]!r}")
        for pid in runtime:
            print(f"  runtime: {pss_mib(pid):5.1f} MiB  {words(pid)[:70]!r}")
        shared = {
            name: state.pid for name, state in states.items() if name in (BROKER, REHEARSAL) and state.pid
        }
        supervisor = int((house.paths.run / "supervisor" / "supervisord.pid").read_text(encoding="ascii"))
        once = {name: total_mib([pid]) for name, pid in {**shared, "supervisor": supervisor}.items() if pid}
    print(f"inside: Hermes {hermes:.0f} MiB, the first process and others {rest:.0f} MiB")
    print(
        f"on the host, for this agent: runtime {held:.0f} MiB (Hermes's memory is in it), client {ours:.0f} MiB"
    )
    beyond = held + ours - hermes
    print(f"beyond Hermes: {beyond:.0f} MiB an agent, {beyond / hermes:.2f} of Hermes itself")
    print("once a machine: " + ", ".join(f"{name} {size:.0f} MiB" for name, size in sorted(once.items())))
    return stage.judged("memory, with troupe's client", (held + ours) / held, goal=GOAL, strict=asked.strict)


if __name__ == "__main__":
    sys.exit(main())
