"""Read what is in a key folder: plain files of ours, of exactly the mode they were made with."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from troupe_tasks import durable
from troupe_tasks.errors import KeyRefused, StateUnreadable


def read(path: Path, *, mode: int, cap_bytes: int) -> bytes:
    """Return a file's content. Raises FileNotFoundError, or KeyRefused for one that is not as it was made."""
    try:
        return durable.read_private(path, cap_bytes, mode=mode)
    except StateUnreadable as error:
        raise KeyRefused(error.what, cause=error.cause) from error


def check_folder(path: Path) -> bool:
    """Return whether a key folder is there. Raises KeyRefused for one that others own, reach or redirect."""
    for folder in (path.parent, path):
        try:
            found = os.lstat(folder)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise KeyRefused(f"{folder} can't be used", cause=str(error.strerror)) from error
        if not stat.S_ISDIR(found.st_mode):
            raise _refused(folder, "it is a link or a file, not a folder")
        if found.st_uid != os.geteuid():
            raise _refused(folder, f"it belongs to uid {found.st_uid}, not to you")
        if stat.S_IMODE(found.st_mode) != 0o700:
            raise _refused(folder, f"its mode is {stat.S_IMODE(found.st_mode):04o}, not 0700")
    return True


def _refused(folder: Path, cause: str) -> KeyRefused:
    return KeyRefused(
        f"{folder} is not a folder that keys can be in", cause=cause,
        hint="Find out who changed it and whether keys were read; then make it yours alone (`chmod 700`).",
    )  # fmt: skip
