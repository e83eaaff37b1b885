"""The one place that writes files of state: whole or not at all, and still there after a power cut.

A file is written beside its target, synced, renamed over it, and the folder synced (rename(2), fsync(2)).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from troupe_tasks.errors import DiskFull, FolderUnusable, StateUnreadable
from troupe_tasks.paths import Paths
from troupe_tasks.text import line

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_FOLDER = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_DROP_BYTES = 32 << 20


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn the system's errors on path into ones that a person can act on."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(f"no room left to write {path}", cause=str(error.strerror)) from error
        raise FolderUnusable(f"cannot use {path}", cause=str(error.strerror)) from error


def make_private_dir(path: Path) -> Path:
    """Make a folder (and its parents) 0700; refuse one that is a link or another user's, or lies in such a one.

    A link above the folders that are troupe's own is the operator's way of having them elsewhere.
    """
    with told(path):
        _refuse_strangers(path)
        for folder in [*reversed(path.parents), path]:
            _make_one(folder)
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode) or not stat.S_ISDIR(found.st_mode):
            raise FolderUnusable(f"{path} is not a plain folder", cause="it is a link or a file")
        if found.st_uid != os.geteuid():
            raise FolderUnusable(f"{path} belongs to another user", cause=f"its owner is uid {found.st_uid}")
        if found.st_mode & 0o777 != 0o700:
            path.chmod(0o700)
    return path


def _refuse_strangers(path: Path) -> None:
    # Whoever owns a folder above can put another one in the place of ours. `/` may be mapped to nobody's uid.
    trusted, root = {0, os.geteuid(), Path("/").stat().st_uid}, _own_root(path)
    for folder in reversed(path.parents):
        try:
            if root is None or not folder.is_relative_to(root):
                found = folder.stat()
            elif stat.S_ISLNK((found := folder.lstat()).st_mode):
                raise FolderUnusable(f"{path} lies in another folder", cause=f"{folder} is a link")
        except FileNotFoundError:
            return
        if found.st_uid not in trusted:
            raise FolderUnusable(
                f"{path} lies in another user's folder", cause=f"{folder} belongs to uid {found.st_uid}"
            )


def _own_root(path: Path) -> Path | None:
    return next((root for root in Paths.from_env().roots if path.is_relative_to(root)), None)


def find_link(path: Path) -> Path | None:
    """Return the first folder of troupe's own on the way to path, or path itself, that is a link."""
    root = _own_root(path)
    above = [] if root is None else [folder for folder in path.parents if folder.is_relative_to(root)]
    return next((folder for folder in [*reversed(above), path] if folder.is_symlink()), None)


def _make_one(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return
    except OSError:
        if not folder.is_dir():
            raise
        return
    folder.chmod(0o700)  # whatever the umask took
    sync_dir(folder.parent)


def sync_dir(folder: Path) -> None:
    """Make a folder's entries durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """Make a folder, its files and their content durable."""
    with told(folder):
        for place, _, names in os.walk(folder):
            for file in (Path(place, name) for name in names):
                if not stat.S_ISREG(file.lstat().st_mode):
                    continue  # a link or a socket has no content of its own
                handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
            sync_dir(Path(place))


def write(path: Path, data: bytes, mode: int = 0o600, *, prove: Callable[[Path], None] | None = None) -> None:
    """Replace path by data, durably; at every moment the old or the new file is there, whole.

    prove is given the new file, whole and synced, before it takes its place; if it raises, the old one stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    with told(path):
        try:
            temporary.unlink(missing_ok=True)
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                os.fchmod(handle, mode)
                _write_all(handle, data)
                os.fsync(handle)
            finally:
                os.close(handle)
            if prove is not None:
                prove(temporary)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_dir(path.parent)


class Fresh:
    """A large file on its way: written piece by piece, seen under its name only when it is whole and on the disk."""

    def __init__(self, path: Path, handle: int) -> None:
        self._path, self._handle = path, handle
        self.bytes = self._clean_bytes = 0

    def write(self, data: bytes) -> int:
        """Append data."""
        with told(self._path):
            _write_all(self._handle, data)
            self.bytes += len(data)
            if self.bytes - self._clean_bytes >= _DROP_BYTES:
                # Written back as we go, and not kept in memory, which others need more.
                os.posix_fadvise(self._handle, 0, self.bytes, os.POSIX_FADV_DONTNEED)
                self._clean_bytes = self.bytes
        return len(data)


@contextmanager
def fresh(path: Path) -> Iterator[Fresh]:
    """Yield a file that gets its name when the block ends well, and is gone when it does not.

    What a killed process left of an earlier attempt is replaced. The caller sees to it that there is one writer.
    """
    temporary = path.with_name(f".{path.name}.new")
    with told(path):
        temporary.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(temporary, flags, 0o600)
    try:
        try:
            yield Fresh(path, handle)
            with told(path):
                os.fsync(handle)
        finally:
            os.close(handle)
        with told(path):
            temporary.replace(path)
            sync_dir(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def read_private(path: Path, cap_bytes: int = 1 << 20, *, mode: int | None = None) -> bytes:
    """Return a file of ours; a link, another user's file, one over the cap or of another mode is refused.

    Raises FileNotFoundError when there is none.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StateUnreadable(f"cannot read {path}", cause=str(error.strerror)) from error
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise StateUnreadable(f"{path} is not a plain file of yours")
        if mode is not None and stat.S_IMODE(found.st_mode) != mode:
            raise StateUnreadable(
                f"{path} does not have the mode that troupe gives it",
                cause=f"it is {stat.S_IMODE(found.st_mode):04o}, not {mode:04o}",
            )
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(cap_bytes + 1)
    except OSError as error:
        raise StateUnreadable(f"cannot read {path}", cause=str(error.strerror)) from error
    finally:
        os.close(handle)
    if len(data) > cap_bytes:
        raise StateUnreadable(f"{path} is larger than {cap_bytes} bytes, which troupe never writes")
    return data


def overwrite(path: Path) -> None:
    """Write zeros over a plain file of ours; where blocks are copied on write, the old ones may stay."""
    with told(path):
        reading = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(reading)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise StateUnreadable(f"{path} is not a plain file of yours")
            os.fchmod(reading, 0o600)  # it may be read-only for its owner too
            writing = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        finally:
            os.close(reading)
        try:
            _write_all(writing, bytes(found.st_size))
            os.fsync(writing)
        finally:
            os.close(writing)


def rename(old: Path, new: Path) -> None:
    """Rename a file or folder, durably; nothing may stand at the new place."""
    with told(old):
        old.rename(new)
        sync_dir(new.parent)
        sync_dir(old.parent)


def remove_tree(path: Path) -> None:
    """Remove a file or folder and everything in it, however deep or closed, following no link; none there is fine."""
    with told(path):
        try:
            above = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            if _remove(path.name, above):
                os.fsync(above)
        finally:
            os.close(above)


class _Level(NamedTuple):
    """A folder on the way down: its name in the one above, where it is, and the folders in it that are left."""

    name: str
    place: tuple[int, int]
    names: list[str]


def _remove(name: str, above: int) -> bool:
    """Remove what has this name in an open folder; tell whether anything had it."""
    handle = _folder(name, above)
    if handle is None:
        return _unlink(name, above)
    # An agent nests folders without end, so one alone is open; the way up is "..", if that is where we came from.
    levels = [_Level("", _place(above), [])]
    try:
        levels.append(_Level(name, _place(handle), _without_files(handle)))
        while len(levels) > 1:
            if levels[-1].names:
                inner = levels[-1].names.pop()
                below = _folder(inner, handle)
                if below is None:
                    _unlink(inner, handle)
                    continue
                os.close(handle)
                handle = below
                levels.append(_Level(inner, _place(handle), _without_files(handle)))
            else:
                done = levels.pop()
                up = os.open("..", _FOLDER, dir_fd=handle)
                os.close(handle)
                handle = up
                if _place(handle) != levels[-1].place:
                    raise FolderUnusable(
                        f"the folder {line(done.name)} was moved while it was removed", hint="Run it again."
                    )
                with suppress(FileNotFoundError):
                    os.rmdir(done.name, dir_fd=handle)
    finally:
        os.close(handle)
    return True


def _folder(name: str, above: int) -> int | None:
    """Open a folder and let its owner, us, change it; None for anything that is no folder, and for nothing."""
    try:
        try:
            handle = os.open(name, _FOLDER, dir_fd=above)
        except PermissionError:  # closed to its owner, who may open it all the same
            pinned = os.open(name, _FOLDER | os.O_PATH, dir_fd=above)
            try:
                Path(f"/proc/self/fd/{pinned}").chmod(0o700)
                handle = os.open(".", _FOLDER, dir_fd=pinned)
            finally:
                os.close(pinned)
    except OSError as error:
        if error.errno in _NO_FOLDER:
            return None
        raise
    if os.fstat(handle).st_mode & 0o700 != 0o700:
        with suppress(OSError):  # another's: what can't be removed from it says so itself
            os.fchmod(handle, 0o700)
    return handle


def _place(handle: int) -> tuple[int, int]:
    found = os.fstat(handle)
    return found.st_dev, found.st_ino


def _without_files(handle: int) -> list[str]:
    """Remove what is no folder from an open folder and return the names of those that are."""
    with os.scandir(handle) as found:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    for name, is_folder in entries:
        if not is_folder:
            _unlink(name, handle)
    return [name for name, is_folder in entries if is_folder]


def _unlink(name: str, above: int) -> bool:
    try:
        os.unlink(name, dir_fd=above)
    except FileNotFoundError:
        return False
    return True
