"""A kit's folder as one archive: the same bytes every time, and unpacked so that nothing lands elsewhere.

The format is the one POSIX calls ustar, and of it plain files and folders alone: no extension is read, so none can
be misread. An archive is checked to its end before anything of it is written.
"""

from __future__ import annotations

import io
import os
import re
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from troupe_tasks import durable
from troupe_tasks.errors import Refused, UsageError
from troupe_tasks.text import line

CAP_BYTES = 16 << 20
_CAP_ENTRIES = 2000
_CAP_DEPTH = 8
_CAP_PATH = 155  # such a path always fits into ustar's two fields, whichever names it is made of
_BLOCK = 512
_FILE_MODE, _FOLDER_MODE = 0o644, 0o755
_USTAR = b"ustar\x0000"
# ASCII alone: no two spellings of one letter, no letters that look alike.
_NAME = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._+@ -]{0,98}(?<![. ])")


@dataclass(frozen=True)
class Entry:
    """One file of an archive with its content, or a folder, whose content is None."""

    path: str
    data: bytes | None


def pack(folder: Path) -> bytes:
    """Return the archive of a kit's folder, whatever its files' times, owners, modes and order are.

    Raises UsageError for a folder that holds what no kit may hold.
    """
    buffer = io.BytesIO()
    try:
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for path in sorted(_listed(folder, "")):
                info, data = _entry(folder, path, left_bytes=CAP_BYTES - buffer.tell())
                tar.addfile(info, io.BytesIO(data))
        packed = buffer.getvalue()
        entries(packed)
    except ValueError as error:
        raise UsageError(
            f"{folder} can't be packed", cause=str(error), hint="A kit holds plain files and folders only."
        ) from error
    except OSError as error:
        raise UsageError(f"{folder} can't be read", cause=str(error)) from error
    return packed


def _listed(folder: Path, above: str) -> Iterator[str]:
    with os.scandir(folder) as inside:
        for found in inside:
            path = checked_path(f"{above}{found.name}")
            yield path
            if found.is_dir(follow_symlinks=False):
                yield from _listed(Path(found.path), f"{path}/")


def _entry(folder: Path, path: str, *, left_bytes: int) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(path)
    mode = (folder / path).lstat().st_mode
    if stat.S_ISDIR(mode):
        info.type, info.mode = tarfile.DIRTYPE, _FOLDER_MODE
        return info, b""
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} is neither a plain file nor a folder")
    handle = os.open(folder / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        data = file.read(left_bytes + 1)
    if len(data) > left_bytes:
        raise ValueError(f"it is larger than {CAP_BYTES} bytes")
    info.type, info.mode, info.size = tarfile.REGTYPE, _FILE_MODE, len(data)
    return info, data


def unpack(data: bytes, folder: Path) -> None:
    """Write an archive's files into a folder, durably, each with the one mode that files of kits have.

    Raises Refused for an archive that is anything but what `pack` makes; then nothing was written.
    """
    try:
        found = entries(data)
    except ValueError as error:
        raise Refused(
            "the kit's archive holds what no kit may hold", cause=str(error),
            hint="Nothing of it was unpacked. Tell whoever publishes the kit.",
        ) from error  # fmt: skip
    with durable.told(folder):
        folder.mkdir()
        folder.chmod(_FOLDER_MODE)
        for entry in found:
            path = folder / entry.path
            _make(path if entry.data is None else path.parent)
            if entry.data is not None:
                durable.write(path, entry.data, _FILE_MODE)
    durable.sync_tree(folder)


def _make(folder: Path) -> None:
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir()
        folder.chmod(_FOLDER_MODE)  # whatever the umask took


def entries(data: bytes) -> list[Entry]:
    """Return everything in an archive, checked; raises ValueError with what is off."""
    if len(data) > CAP_BYTES:
        raise ValueError(f"it is larger than {CAP_BYTES} bytes")
    found: list[Entry] = []
    spelled: dict[str, str] = {}
    folders: dict[str, bool] = {}
    for entry in _blocks(memoryview(data)):
        if len(found) == _CAP_ENTRIES:
            raise ValueError(f"it holds more than {_CAP_ENTRIES} files and folders")
        _tell_apart(entry, spelled, folders)
        found.append(entry)
    return found


def _blocks(data: memoryview) -> Iterator[Entry]:
    at = 0
    while True:
        head = bytes(data[at : at + _BLOCK])
        at += _BLOCK
        if len(head) < _BLOCK:
            raise ValueError("it is cut off")
        if not any(head):
            break
        info = _head(head)
        if not 0 <= info.size <= len(data) - at:
            raise ValueError(f"{line(info.name)} claims a size that it does not have")
        folder = info.type == tarfile.DIRTYPE
        if folder and info.size:
            raise ValueError(f"{line(info.name)} is a folder with content")
        yield Entry(info.name, None if folder else bytes(data[at : at + info.size]))
        at += -(-info.size // _BLOCK) * _BLOCK
    if any(data[at:]):
        raise ValueError("something follows its end")


def _head(head: bytes) -> tarfile.TarInfo:
    kind = head[156:157]
    if head[257:265] != _USTAR:
        raise ValueError("it is no plain ustar archive")
    if kind not in (tarfile.REGTYPE, tarfile.DIRTYPE):
        raise ValueError(
            f"it holds an entry of type {line(kind)!r}, and a kit has plain files and folders only"
        )
    try:
        info = tarfile.TarInfo.frombuf(head, "ascii", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError) as error:
        raise ValueError(
            "one of its headers is damaged, or names something in other letters than ASCII"
        ) from error
    checked_path(info.name)
    return info


def checked_path(path: str) -> str:
    """Return a path within a kit when it is one; raises ValueError."""
    parts = path.split("/")
    if len(path) > _CAP_PATH or len(parts) > _CAP_DEPTH:
        raise ValueError(
            f"{line(path)} is longer than {_CAP_PATH} characters or deeper than {_CAP_DEPTH} folders"
        )
    if not all(_NAME.fullmatch(part) for part in parts):  # so neither absolute, nor `..`, nor `.`
        raise ValueError(f"{line(path)} is no plain path within the kit")
    return path


def _tell_apart(entry: Entry, spelled: dict[str, str], folders: dict[str, bool]) -> None:
    """Refuse a path that another entry has, or would have where letters' case means nothing."""
    parts = entry.path.split("/")
    for depth in range(1, len(parts) + 1):
        path = "/".join(parts[:depth])
        if spelled.setdefault(path.lower(), path) != path:
            raise ValueError(f"{path} and {spelled[path.lower()]} differ in their letters' case only")
        folder = depth < len(parts) or entry.data is None
        if path in folders and not (folder and folders[path]):
            raise ValueError(f"{path} is there twice")
        folders[path] = folder
