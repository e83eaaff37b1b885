"""One HOME with a copy of troupe of its own, whose commands the tests run, and what can be seen of it outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from troupe_tasks.errors import TroupeError
from troupe_tasks.names import agent_id
from troupe_tasks.operations.house import House as Rooms
from troupe_tasks.paths import Paths

ROOT = Path(__file__).parents[2]
PROBE = ROOT / "tests" / "kits" / "probe"
SHARED_WITH_HERMES = ("requirements.lock", "managed")
_SHARED_PARTS = {"images", "kits", "tools"}


@dataclass(frozen=True)
class Ended:
    """How a command ended; status is minus the signal's number if one ended it."""

    status: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"status {self.status}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


@dataclass(frozen=True)
class House:
    """A HOME, the code that runs in it, and the IDs and names of all agents that were asked for."""

    home: Path
    code: Path
    asked_for: dict[str, str] = field(default_factory=dict)

    @property
    def paths(self) -> Paths:
        """Return the folders of this HOME."""
        return Paths.from_env({"HOME": str(self.home)})

    @property
    def rooms(self) -> Rooms:
        """Return the driver and the services, for looking at them without starting a command."""
        return Rooms(self.paths)

    def env(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of this house's commands."""
        plain = {"HOME": str(self.home), "PATH": os.environ["PATH"], "PYTHONPATH": str(self.code)}
        return {**plain, "LANG": "C.UTF-8", "TERM": "xterm", **(extra or {})}

    def argv(self, *args: str) -> list[str]:
        """Return the words that start a command."""
        for flag, name in pairwise(args):
            if flag == "--name":
                with suppress(TroupeError):
                    self.asked_for[agent_id(name)] = name
        return [sys.executable, "-m", "troupe_tasks", *args]

    def troupe(
        self, *args: str, input: str | None = None, env: Mapping[str, str] | None = None, timeout: float = 170,  # noqa: A002
        wrapped_in: tuple[str, ...] = (),
    ) -> Ended:  # fmt: skip
        """Run one command to its end; without input its stdin is empty and no terminal."""
        done = subprocess.run(
            [*wrapped_in, *self.argv(*args)], input=input or "", capture_output=True, encoding="utf-8",
            errors="surrogateescape", env=self.env(env), cwd="/", timeout=timeout, check=False,
        )  # fmt: skip
        return Ended(done.returncode, done.stdout, done.stderr)

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Start one command in a process group of its own."""
        return subprocess.Popen(
            self.argv(*args), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            encoding="utf-8", env=self.env(), cwd="/", start_new_session=True,
        )  # fmt: skip

    def create(self, name: str, kit: str = "probe") -> Ended:
        """Create an agent, well."""
        done = self.troupe("create", kit, "--name", name, "--rehearsal")
        if done.status != 0:
            raise AssertionError(str(done))
        return done

    def delete(self, name: str) -> None:
        """Delete an agent; none there is fine."""
        done = self.troupe("delete", agent_id(name), "--yes-i-mean", name)
        left = self.traces(agent_id(name))
        if done.status not in (0, 3) or left:
            raise AssertionError(f"{done}\n--- left behind: {left}")

    def traces(self, one: str) -> list[str]:
        """Return all that is left of an agent: files, processes, loop devices, control groups."""
        return [
            *(str(path) for path in self.files() if one in path.name or one in path.parts),
            *(
                f"process {pid}: {' '.join(words)[:300]}"
                for pid, words in self.processes()
                if {one, f"{one}."} & set(words)
            ),
            *(f"loop device on {path}" for path in loops() if path.is_relative_to(self.paths.sandbox(one))),
            *map(str, cgroups(one)),
        ]

    def files(self) -> Iterator[Path]:
        """Yield everything in the folders of data, settings and state but the images, kits and programs all share."""
        for root in (self.paths.data, self.paths.config, self.paths.state):
            for place, folders, names in os.walk(root):
                if Path(place) == self.paths.data:
                    folders[:] = [name for name in folders if name not in _SHARED_PARTS]
                yield from (Path(place, name) for name in [*folders, *names])

    def processes(self) -> Iterator[tuple[int, list[str]]]:
        """Yield every process of this house but the tests' own: its number and its words."""
        mark = str(self.home).encode()
        variables = (b"HOME=" + mark, b"XDG_DATA_HOME=" + mark)
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            try:
                words, environ = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
                where = os.readlink(entry / "cwd").encode()
            except OSError:
                continue
            ours = any(variable.startswith(variables) for variable in environ.split(b"\0"))
            if words and (ours or mark in words or where.startswith(mark)):
                yield int(entry.name), words.decode(errors="replace").split("\0")

    def forget(self) -> None:
        """Delete all agents and stop all services; nothing may be left then."""
        for name in self.asked_for.values():
            self.delete(name)
        self.rooms.services.shutdown()
        left = [trace for one in self.asked_for for trace in self.traces(one)]
        left += [f"process {pid}: {' '.join(words)[:300]}" for pid, words in self.processes()]
        left += [f"loop device on {path}" for path in loops() if path.is_relative_to(self.home)]
        shared = {
            str(self.paths.data / part) for part in _SHARED_PARTS
        }  # a test's own, of what all houses share
        left += [line for line in mounts() if f" {self.home}/" in line and not shared & set(line.split(" "))]
        if left:
            raise AssertionError("left behind:\n" + "\n".join(left))


def loops() -> list[Path]:
    """Return what every loop device of this machine stands on."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found.append(Path(backing.read_text(encoding="utf-8").strip()))
        except OSError:  # let go of while we looked
            continue
    return found


def mounts() -> list[str]:
    """Return the mounts that this process sees."""
    return Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()


def cgroups(one: str) -> list[Path]:
    """Return the control groups of a sandbox, by its ID: their names hold more than that."""
    found = Path("/sys/fs/cgroup").glob("**/troupe/*")
    return [folder for folder in found if folder.is_dir() and folder.name.partition(".")[0] == one]


def furnish(code: Path) -> None:
    """Copy troupe, with one more kit: probe, which shares Hermes's image."""
    unwanted = shutil.ignore_patterns("__pycache__")
    for name in ("troupe_tasks", "guest", "kits"):
        shutil.copytree(ROOT / name, code / name, ignore=unwanted)
    kit = code / "kits" / "probe"
    shutil.copytree(PROBE, kit, ignore=shutil.ignore_patterns("guest"))
    shutil.copy(PROBE / "guest" / "probe.py", code / "guest")
    for name in SHARED_WITH_HERMES:
        source = code / "kits" / "hermes" / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, kit / name)


@contextmanager
def kits_kept(house: House) -> Iterator[None]:
    """Let a test change the kits of the house's code; those that come after it find them as they were."""
    kits, kept = house.code / "kits", house.code / "kits.kept"
    shutil.copytree(kits, kept)
    try:
        yield
    finally:
        shutil.rmtree(kits)
        kept.rename(kits)


def wait_until(holds: Callable[[], bool], *, within_s: float = 60.0) -> None:
    """Return once holds does; raise AssertionError at the deadline."""
    until = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > until:
            raise AssertionError(f"it did not come to be within {within_s:g} s")
        time.sleep(0.2)
