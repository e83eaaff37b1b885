"""Find the control groups that bound this process, under cgroup v1, v2 or both at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

_CAP_BYTES: Final = 1 << 20
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Group:
    """A folder of the cgroup tree and its version, 1 or 2."""

    folder: Path
    version: int


def groups(controller: str, *, root: Path = Path("/")) -> tuple[Group, ...]:
    """Return this process's groups for a controller, its own first, up to the top of what is mounted.

    A limit anywhere on the way up binds. Empty where nothing is mounted or readable.
    """
    own = _own(text_of(root / "proc/self/cgroup"))
    found: list[Group] = []
    for mount in _mounts(text_of(root / "proc/self/mountinfo")):
        if mount.version == 1 and controller not in mount.controllers:
            continue
        path = own.get(controller if mount.version == 1 else "")
        if path is None:
            continue
        top = root / str(mount.point).lstrip("/")
        # Both versions may be mounted at once; a controller is in one of them.
        if mount.version == 2 and controller not in text_of(top / "cgroup.controllers").split():
            continue
        # A container sees only its own part of the tree: what is mounted may begin below or beside the path.
        below = path.relative_to(mount.inside) if path.is_relative_to(mount.inside) else PurePosixPath()
        folder = top / below
        if not folder.is_dir() or ".." in below.parts:
            folder = top
        chain = [folder, *folder.parents]
        found.extend(Group(each, mount.version) for each in chain[: chain.index(top) + 1])
    return tuple(found)


def text_of(path: Path) -> str:
    """Return a small file of the kernel's, or nothing where it can't be read."""
    try:
        with path.open("rb") as file:
            return file.read(_CAP_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""


def number_of(path: Path) -> int | None:
    """Return the whole number that a file of the kernel's holds, or None (`max`, -1 or unreadable)."""
    text = text_of(path).strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


@dataclass(frozen=True)
class _Mount:
    inside: PurePosixPath
    point: PurePosixPath
    version: int
    controllers: frozenset[str]


def _own(text: str) -> dict[str, PurePosixPath]:
    """Return controller -> path; version 2's path is under the empty name."""
    paths: dict[str, PurePosixPath] = {}
    for row in text.splitlines():
        _, found, rest = row.partition(":")
        names, colon, path = rest.partition(":")
        if found and colon:
            paths.update(dict.fromkeys(names.split(","), PurePosixPath(path)))
    return paths


def _mounts(text: str) -> list[_Mount]:
    mounts = []
    for row in text.splitlines():
        left, _, right = row.partition(" - ")
        before, after = left.split(" "), right.split(" ")
        if len(before) < 5 or len(after) < 3 or after[0] not in ("cgroup", "cgroup2"):
            continue
        inside, point = (PurePosixPath(_OCTAL.sub(_byte, field)) for field in before[3:5])
        version = 2 if after[0] == "cgroup2" else 1
        mounts.append(_Mount(inside, point, version, frozenset(after[2].split(","))))
    return mounts


def _byte(match: re.Match[str]) -> str:
    return chr(int(match.group(1), 8))
