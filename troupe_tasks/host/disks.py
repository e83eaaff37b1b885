"""Read how much room a filesystem has left for this user (column `Avail` of `df -m`), and which one a path is on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def free_mib(path: Path, *, statvfs: Callable[[Path], os.statvfs_result] = os.statvfs) -> int | None:
    """Return the free MiB of the filesystem that holds path, or will hold it once it is made.

    None where the figure can't be read.
    """
    for place in (path, *path.parents):
        try:
            figures = statvfs(place)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        return figures.f_bavail * figures.f_frsize >> 20
    return None


def device(path: Path) -> int | None:
    """Return the number of the filesystem that holds path, or will hold it; None where it can't be read."""
    for place in (path, *path.parents):
        try:
            return place.stat().st_dev
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None
