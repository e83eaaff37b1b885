"""An archive on the host's disk: read back, proved again, thrown away. It is never unpacked here."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from troupe_tasks import durable
from troupe_tasks.archives.model import FILES, HERMES, Archive, Part
from troupe_tasks.errors import BackupDamaged, StateUnreadable

RECORD = "archive.json"
_CHUNK = 1 << 20
_RECORD_CAP = 65536


def load(folder: Path) -> Archive:
    """Return the archive that a folder holds. Raises BackupDamaged when it holds none that is whole."""
    try:
        return Archive.model_validate_json(durable.read_private(folder / RECORD, _RECORD_CAP))
    except FileNotFoundError:
        raise BackupDamaged(f"{folder} holds no whole backup", cause=f"it has no {RECORD}") from None
    except StateUnreadable as error:
        raise BackupDamaged(error.what, cause=error.cause) from error
    except ValidationError as error:
        cause = str(error.errors(include_input=False, include_url=False)[0]["msg"])
        raise BackupDamaged(f"{folder / RECORD} does not read", cause=cause) from None


@contextmanager
def opened(folder: Path, part: Part) -> Iterator[BinaryIO]:
    """Yield a part's file, unbuffered; raise BackupDamaged when it is not there or has another size."""
    path = folder / part.name
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise BackupDamaged(f"cannot read {path}", cause=str(error.strerror)) from error
    with os.fdopen(handle, "rb", buffering=0) as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise BackupDamaged(f"{path} is not a plain file of yours")
        if found.st_size != part.bytes:
            raise BackupDamaged(f"{path} has {found.st_size} bytes, not the {part.bytes} that were written")
        # From the disk, as far as the kernel obliges: what is in memory proves nothing.
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        yield file


class Hashed:
    """A file that is hashed as it is read, and compared once it was read to its end."""

    def __init__(self, file: BinaryIO, path: Path, part: Part) -> None:
        self._file, self._path, self._part, self._digest = file, path, part, hashlib.sha256()

    def read(self, size: int = _CHUNK) -> bytes:
        """Return the next bytes; nothing at the end."""
        try:
            data = self._file.read(size)
        except OSError as error:
            raise BackupDamaged(f"cannot read {self._path}", cause=str(error.strerror)) from error
        self._digest.update(data)
        return data

    def prove(self) -> None:
        """Raise BackupDamaged unless what was read is what was written."""
        if self._digest.hexdigest() != self._part.sha256:
            raise BackupDamaged(
                f"{self._path} is not what was written", cause="it has another SHA-256 now",
            )  # fmt: skip


def rehash(folder: Path, archive: Archive) -> None:
    """Read every part from the disk again; raise BackupDamaged unless all are what was written."""
    for part in archive.parts:
        with opened(folder, part) as file:
            hashed = Hashed(file, folder / part.name, part)
            while hashed.read():
                pass
            hashed.prove()


def discard(folder: Path) -> None:
    """Remove an archive's files, whole or not, and nothing else; what says that it is whole goes first."""
    with durable.told(folder):
        for name in (RECORD, FILES, HERMES):
            (folder / name).unlink(missing_ok=True)
            (folder / f".{name}.new").unlink(missing_ok=True)
