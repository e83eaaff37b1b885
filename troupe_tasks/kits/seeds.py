"""A kit's seeds: skills, scripts and assets that are put into a new agent, and brought up to date by an upgrade.

They lie in the kit's folder `seeds/`, and go to the same places below Hermes's home.
"""

from __future__ import annotations

import hashlib
import re
import stat
from dataclasses import dataclass
from pathlib import Path

_FOLDERS = ("assets", "scripts", "skills")
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MOST = 200
_MOST_BYTES = 4 << 20


@dataclass(frozen=True)
class Seed:
    """One file: its path below Hermes's home, and its content."""

    path: str
    data: bytes

    @property
    def mode(self) -> int:
        """Return the mode that it has inside: a script can be run (archives of kits keep no modes)."""
        return 0o700 if self.data.startswith(b"#!") else 0o600

    @property
    def sha256(self) -> str:
        """Return the digest of its content."""
        return hashlib.sha256(self.data).hexdigest()


def read(kit_folder: Path) -> tuple[Seed, ...]:
    """Return a kit's seeds, by path; raises ValueError for what can't be one."""
    home = kit_folder / "seeds"
    return tuple(Seed(name, (home / name).read_bytes()) for name in names(kit_folder))


def names(kit_folder: Path) -> tuple[str, ...]:
    """Return the paths of a kit's seeds, without reading them; raises ValueError for what can't be one."""
    home = kit_folder / "seeds"
    found: list[str] = []
    left = _MOST_BYTES
    for path in sorted(home.rglob("*")):
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            continue
        parts = path.relative_to(home).parts
        name = "/".join(parts)
        if parts[0] not in _FOLDERS or len(parts) < 2 or len(parts) > 8:
            raise ValueError(f"seeds/{name}: seeds are files in {', '.join(_FOLDERS)}")
        if not stat.S_ISREG(status.st_mode) or not all(_PART.fullmatch(part) for part in parts):
            raise ValueError(f"seeds/{name}: seeds are plain files, named with A-Z a-z 0-9 . _ -")
        left -= status.st_size
        if left < 0 or len(found) == _MOST:
            raise ValueError(f"a kit has at most {_MOST} seeds of {_MOST_BYTES >> 20} MiB together")
        found.append(name)
    return tuple(found)
