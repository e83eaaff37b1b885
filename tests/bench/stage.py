"""A house of the benches' own: a temporary HOME with the kit's image, what runs in it ended and removed after.

TROUPE_TEST_HOME names a HOME that has a finished image and tools already: they are taken from there as hard
links. Without it both are built, which takes minutes and the network.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from troupe_tasks import durable, sizes
from troupe_tasks.host import apt
from troupe_tasks.kits import image, local
from troupe_tasks.kits.model import Kit
from troupe_tasks.operations.create import Job, Wish
from troupe_tasks.operations.delete import delete, known
from troupe_tasks.operations.house import House
from troupe_tasks.paths import Paths

ROOT = Path(__file__).parents[2]
FAR = 1.5  # with --strict a figure this many times over its goal fails the run; below that it is noise or a finding


@dataclass(frozen=True)
class Asked:
    """How the bench was called."""

    rounds: int
    strict: bool


def asked(doc: str | None, *, rounds: int) -> Asked:
    """Read the arguments that every bench of agents takes."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--rounds", type=int, default=rounds, help="pairs to measure (%(default)s)")
    parser.add_argument(
        "--strict", action="store_true", help=f"fail when a figure is over {FAR:g} x its goal"
    )
    found = parser.parse_args()
    return Asked(rounds=max(1, found.rounds), strict=found.strict)


def judged(name: str, ratio: float, *, goal: float, strict: bool) -> int:
    """Print a ratio beside its goal and return the exit status that it stands for."""
    print(f"{name}: ratio {ratio:.2f} (goal {goal:g}{'' if ratio <= goal else ', missed'})")
    return 1 if strict and ratio > goal * FAR else 0


def told(name: str, times_s: list[float]) -> str:
    """Return a median with its quartiles, in ms."""
    low, middle, high = statistics.quantiles(times_s, n=4) if len(times_s) > 1 else times_s * 3
    return f"{name} {middle * 1000:.0f} ms (quartiles {low * 1000:.0f}-{high * 1000:.0f}, n={len(times_s)})"


def paired(pairs: list[tuple[float, float]]) -> float:
    """Return the median of the pairs' own ratios: a busy moment hits both sides of a pair alike."""
    return statistics.median(ours / raw for ours, raw in pairs)


@contextmanager
def house(*, with_image: bool = True) -> Iterator[House]:
    """Give a house in a temporary HOME; every agent and service in it is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="troupe-bench-") as home:
        for name in [name for name in os.environ if name.startswith("XDG_")]:
            del os.environ[name]
        source = os.environ.get("TROUPE_TEST_HOME", "")
        os.environ["HOME"] = home
        # Commands start as a person's do, from compiled modules.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        found = House(Paths.from_env())
        durable.make_private_dir(found.paths.data)
        _bring(found, Path(source) if source else None, with_image=with_image)
        try:
            yield found
        finally:
            clear(found)


def _bring(found: House, source: Path | None, *, with_image: bool) -> None:
    data = source / ".local/share/troupe" if source else None
    for name in ("tools", "images") if with_image else ("tools",):
        if data and (data / name).is_dir():
            copy = ["cp", "-a", str(data / name), str(found.paths.data)]
            if subprocess.run([*copy, "-l"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
                subprocess.run(copy, check=True)  # another file system has no hard links of this one
    apt.ensure_runsc(found.paths, print)
    if with_image:
        image.ensure_image(kit(), found.paths, print)


def clear(found: House) -> None:
    """Delete every agent, end the services, and remove what a broken delete left."""
    capsules = found.driver("capsule")
    ids = [record.id for record in found.records()] + [
        info.id for info in capsules.list().sandboxes if info.id
    ]
    for agent_id in dict.fromkeys(ids):
        if known(found.paths, agent_id):
            delete(found, agent_id, told=lambda _line: None)
        else:
            capsules.remove(agent_id)
    found.services.shutdown()
    for tree in (found.paths.data, found.paths.state, found.paths.config):
        durable.remove_tree(tree)


def cpu_s() -> float:
    """Return the CPU time of every program started from here that has ended: a busy machine stretches it less."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def kit() -> Kit:
    """Return the kit `hermes`."""
    return local.find("hermes")


def job(found: House, agent_id: str) -> Job:
    """Return a create of a small rehearsal agent that nobody has begun."""
    wanted = sizes.Wanted(cpus=2, memory_mib=2048, storage_mib=2048)
    wish = Wish(agent_id, agent_id, kit(), rehearsal=True, wanted=wanted, over_budget=True)
    return Job(found, wish, lambda _line: None)


def command(*words: str) -> list[str]:
    """Return troupe's command line in this interpreter; run it in ROOT."""
    return [sys.executable, "-X", "utf8", "-m", "troupe_tasks", *words]


def create(agent_id: str) -> None:
    """Create a small rehearsal agent by the command."""
    given = ("--rehearsal", "--cpu=2", "--memory=2", "--storage=2", "--force")
    words = command("create", "hermes", "--name", agent_id, *given)
    subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, check=True)
