"""Control groups, versions 1 and 2: one group a sandbox, below the group that this process is in.

Staying below our own group keeps whatever limits this machine (or container) has put on us. On version 2 a group
with processes can't share out its controllers, so there the nearest writable ancestor that can do it is used.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from troupe_tasks.errors import NotReady

_PERIOD_US = 100_000
_PARENT = "troupe"
_RESOURCES = {"memory": "memory", "cpus": "cpu", "processes": "pids"}


@dataclass(frozen=True)
class Limits:
    """What a group may use; processes counts the host's threads."""

    memory_mib: int
    cpus: int
    processes: int


@dataclass(frozen=True)
class Hierarchy:
    """One place where groups can be made: which controllers bind there, and the folder to make them in."""

    version: int
    controllers: frozenset[str]
    folder: Path


def hierarchies(proc: Path = Path("/proc/self")) -> tuple[Hierarchy, ...]:
    """Return where this process can make groups that limit memory, CPU and processes; () when nowhere."""
    mounts = _mounts(proc)
    found: list[Hierarchy] = []
    for line in (proc / "cgroup").read_text(encoding="utf-8").splitlines():
        _number, names, own = line.split(":", 2)
        wanted = frozenset(names.split(",")) & frozenset(_RESOURCES.values())
        if names == "" and "" in mounts:
            found += _version_2(*mounts[""], own)
        elif wanted:
            first = min(wanted)
            if first in mounts:
                folder = _below(*mounts[first], own)
                if folder is not None and _can_make(folder):
                    found.append(Hierarchy(1, wanted, folder))
    return tuple(found)


def binding(places: tuple[Hierarchy, ...] | None = None) -> frozenset[str]:
    """Return which of memory, cpus and processes can be limited here."""
    here = hierarchies() if places is None else places
    return frozenset(
        name for name, controller in _RESOURCES.items() if any(controller in h.controllers for h in here)
    )


def make(name: str, limits: Limits) -> tuple[Path, ...]:
    """Make the groups of one sandbox with their limits and return their folders; twice is fine."""
    folders: list[Path] = []
    for place in hierarchies():
        folder = place.folder / _PARENT / name
        try:
            if place.version == 2:
                folder.parent.mkdir(exist_ok=True)
                _share_out(folder.parent, place.controllers)
            folder.mkdir(parents=True, exist_ok=True)
            _limit(folder, place, limits)
        except OSError as error:
            raise NotReady(
                f"cannot make the control group {folder}", cause=str(error.strerror),
                hint="Look at that folder's owner and at the limits of the group above it.",
            ) from error  # fmt: skip
        folders.append(folder)
    return tuple(folders)


def find(name: str) -> tuple[Path, ...]:
    """Return the groups of one sandbox that are there."""
    folders = (place.folder / _PARENT / name for place in hierarchies())
    return tuple(folder for folder in folders if folder.is_dir())


def pids(folders: tuple[Path, ...]) -> tuple[int, ...]:
    """Return the processes in these groups."""
    found: set[int] = set()
    for folder in folders:
        with contextlib.suppress(OSError):
            found.update(int(word) for word in (folder / "cgroup.procs").read_text(encoding="ascii").split())
    return tuple(sorted(found))


def kill(folders: tuple[Path, ...], *, deadline_s: float) -> None:
    """Kill whatever is in these groups and wait until they are empty."""
    end = time.monotonic() + deadline_s
    while left := pids(folders):
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            raise NotReady(
                f"{len(left)} processes of a sandbox did not end when killed", cause=f"pid {left[0]} among them",
                hint="They wait for a disk or the kernel; see `ps -o pid,stat,wchan`, then try again.",
            )  # fmt: skip
        time.sleep(0.01)


def remove(folders: tuple[Path, ...], *, deadline_s: float = 10.0) -> None:
    """Kill what is left in these groups, then remove them, and the shared parent when it is empty."""
    kill(folders, deadline_s=deadline_s)
    end = time.monotonic() + deadline_s
    for folder in folders:
        # The kernel answers EBUSY until the last zombie is reaped by its parent.
        while folder.is_dir() and not _rmdir(folder) and time.monotonic() < end:
            time.sleep(0.01)
        if folder.parent.name == _PARENT:
            _rmdir(folder.parent)


def _rmdir(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _limit(folder: Path, place: Hierarchy, limits: Limits) -> None:
    memory, quota = limits.memory_mib << 20, limits.cpus * _PERIOD_US
    if place.version == 2:
        wanted = {
            "memory": (("memory.max", str(memory)), ("memory.swap.max", "0"), ("memory.oom.group", "1")),
            "cpu": (("cpu.max", f"{quota} {_PERIOD_US}"),),
            "pids": (("pids.max", str(limits.processes)),),
        }
    else:
        wanted = {
            # memsw may not be below memory at any moment: loosen it, set memory, then tighten it.
            "memory": (
                ("memory.memsw.limit_in_bytes", "-1"),
                ("memory.limit_in_bytes", str(memory)),
                ("memory.memsw.limit_in_bytes", str(memory)),
            ),
            "cpu": (("cpu.cfs_period_us", str(_PERIOD_US)), ("cpu.cfs_quota_us", str(quota))),
            "pids": (("pids.max", str(limits.processes)),),
        }
    for controller in place.controllers:
        for name, value in wanted[controller]:
            if (folder / name).exists():  # swap accounting may be off
                _put(folder / name, value)


def _put(file: Path, value: str) -> None:
    handle = os.open(file, os.O_WRONLY)
    try:
        os.write(handle, value.encode("ascii"))
    finally:
        os.close(handle)


def _share_out(folder: Path, controllers: frozenset[str]) -> None:
    _put(folder / "cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(controllers)))


def _can_make(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK) and not os.statvfs(folder).f_flag & os.ST_RDONLY


def _version_2(mounted: Path, root: str, own: str) -> list[Hierarchy]:
    """Return the nearest group from our own upwards in which groups with limits can be made.

    The process that moves needs write access to the common ancestor's cgroup.procs as well (cgroups(7)).
    """
    start = _below(mounted, root, own)
    if start is None:
        return []
    for folder in (start, *start.parents):
        if not folder.is_relative_to(mounted) or not _can_make(folder):
            break
        shared = folder / "cgroup.subtree_control"
        if not os.access(folder / "cgroup.procs", os.W_OK) or not os.access(shared, os.W_OK):
            break
        wanted = frozenset(_RESOURCES.values()) & _words(folder / "cgroup.controllers")
        if not wanted:
            continue
        if not wanted <= _words(shared):
            with contextlib.suppress(OSError):  # EBUSY: processes live here, so try the one above
                _share_out(folder, wanted)
        if wanted <= _words(shared):
            return [Hierarchy(2, wanted, folder)]
    return []


def _words(file: Path) -> frozenset[str]:
    try:
        return frozenset(file.read_text(encoding="ascii").split())
    except OSError:
        return frozenset()


def _below(mounted: Path, root: str, own: str) -> Path | None:
    """Return the folder of our own group, when the mount shows it."""
    inside = os.path.relpath(own, root)
    folder = mounted if inside == "." or own == "/" else mounted / inside
    return folder if ".." not in Path(inside).parts and folder.is_dir() else None


def _mounts(proc: Path) -> dict[str, tuple[Path, str]]:
    """Return where each controller ("" for version 2) is mounted, and which group is the mount's root."""
    found: dict[str, tuple[Path, str]] = {}
    for line in (proc / "mountinfo").read_text(encoding="utf-8").splitlines():
        left, _, right = line.partition(" - ")
        kind, _source, options = right.split(" ", 2)
        root, where = left.split(" ")[3:5]
        if kind == "cgroup2":
            found.setdefault("", (Path(where), root))
        elif kind == "cgroup":
            for option in options.split(","):
                found.setdefault(option, (Path(where), root))
    return found
