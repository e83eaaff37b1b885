"""Walk the agent's folders and say what is there, as one digest. Used by archive.py; it runs nowhere by itself.

A manifest is the same for the same tree wherever it is computed: docs/backups.md tells what goes into it.
"""

import array
import errno
import hashlib
import os
import stat
import time

from sending import CHUNK, SCRATCH, room

BLOCK = 4096
ZERO_BLOCK = bytes(BLOCK)
NAMES_TOLD = 20


class Counted:
    """A list of which only the first names are told: the host takes small answers only."""

    def __init__(self):
        """Start empty."""
        self.count, self.first = 0, []

    def add(self, name, why=""):
        """Count a name."""
        self.count += 1
        if len(self.first) < NAMES_TOLD:
            text = name.decode("utf-8", "backslashreplace")
            text = text if len(text) <= 200 else f"{text[:200]}..."
            self.first.append(f"{text} ({why[:60]})" if why else text)

    def told(self):
        """Return it for the report."""
        return {"count": self.count, "first": self.first}


def locked(mode):
    """Tell whether not even the owner may read a file or folder, so that its mode is changed for a moment."""
    need = 0o500 if stat.S_ISDIR(mode) else 0o400
    return not stat.S_ISLNK(mode) and mode & need != need


def sign(status):
    """Return what is another when an entry has changed."""
    mode = status.st_mode
    size = 0 if stat.S_ISDIR(mode) else status.st_size
    return (mode, status.st_ino, size, status.st_mtime_ns, 0 if locked(mode) else status.st_ctime_ns)


class Signs:
    """What every entry looked like when it was read, so that a second walk can tell whether it still does."""

    def __init__(self):
        """Start with none."""
        self.seen, self.place, self.known = array.array("q"), 0, None

    def note(self, path, status):
        """Remember an entry."""
        self.seen.append(hash((path, sign(status))))

    def same(self, path, status):
        """Tell whether an entry of the second walk was there, and the same, in the first."""
        mark = hash((path, sign(status)))
        if self.known is None:
            if self.place < len(self.seen) and self.seen[self.place] == mark:
                self.place += 1
                return True
            self.known = set(self.seen)
        return mark in self.known


class Alive:
    """A byte on stderr now and then, so that the host does not take a long look for a standstill."""

    last = time.monotonic()

    @classmethod
    def beat(cls):
        """Say that work goes on."""
        if time.monotonic() - cls.last > 2:
            cls.last = time.monotonic()
            os.write(2, b".")


def walk(folder, gone, unseen=None):
    """Yield (path, name, status) of all there is, each while its own folder is the current one, in one fixed order.

    What is named unseen, and is right in the folder, is passed over. Paths begin with the folder's last part. Names
    alone are used, so a path may be longer than the system's limit and no link is followed. What vanishes meanwhile
    goes to gone.
    """
    parent, top = os.path.split(folder)
    os.chdir(parent)
    levels = [(b"", iter([top]), None)]
    while levels:
        prefix, names, above = levels[-1]
        name = next(names, None)
        if name is None:
            levels.pop()
            if above is not None:
                _leave(*above)
            continue
        if name == unseen and len(levels) == 2:
            continue
        path = prefix + name
        Alive.beat()
        try:
            status = os.lstat(name)
            if stat.S_ISDIR(status.st_mode):
                if locked(status.st_mode):
                    os.chmod(name, stat.S_IMODE(status.st_mode) | 0o700)
                yield path, name, status
                above = (os.stat(b"."), name, status.st_mode)
                levels.append((path + b"/", iter(_enter(name)), above))
            else:
                yield path, name, status
        except (FileNotFoundError, NotADirectoryError):
            gone(path)


def entries(folders, gone):
    """Yield what walk does of several folders, but for our own scratch folder, which is in the first of them."""
    for folder in folders:
        yield from walk(folder, gone, SCRATCH if folder == folders[0] else None)


def _enter(name):
    handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchdir(handle)
    finally:
        os.close(handle)
    return sorted(os.listdir(b"."))


def _leave(expected, name, mode):
    os.chdir(b"..")
    found = os.stat(b".")
    if (found.st_dev, found.st_ino) != (expected.st_dev, expected.st_ino):
        raise OSError(errno.ESTALE, "a folder was moved while it was read")
    if locked(mode):
        os.chmod(name, stat.S_IMODE(mode))


def open_file(name, mode):
    """Return a file opened for reading, and its extended attributes."""
    if locked(mode):
        os.chmod(name, stat.S_IMODE(mode) | 0o400)
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    found = xattrs_of(handle)
    if locked(mode):
        os.fchmod(handle, stat.S_IMODE(mode))
    return handle, found


def xattrs_of(target):
    """Return the user's own extended attributes of an open file or a folder's name, sorted."""
    try:
        found = os.listxattr(target)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        return []
    names = sorted(os.fsencode(name) for name in found if name.startswith("user."))
    return [(name, os.getxattr(target, name)) for name in names]


def data_runs(buffer, count):
    """Return the runs of blocks that are not all zero; a block that is cut short by the end counts as data."""
    runs, data = [], 0
    for number, first in enumerate(buffer[:count:BLOCK]):  # hardly a block begins with a zero but those
        begin = number * BLOCK
        if not first and buffer[begin : min(begin + BLOCK, count)] == ZERO_BLOCK:
            extend(runs, data, begin)
            data = begin + BLOCK
    extend(runs, data, count)
    return runs


def extend(runs, begin, end):
    """Add a run, joined to the last one where they touch."""
    if runs and runs[-1][1] == begin:
        runs[-1] = (runs[-1][0], end)
    elif end > begin:
        runs.append((begin, end))


class Content:
    """The digest of a file: of its blocks that are not all zero, and of where they are when others are."""

    def __init__(self):
        """Start at the file's beginning."""
        self.hash, self.runs = hashlib.sha256(), []

    def add(self, offset, buffer, count):
        """Take the next bytes, which begin at a whole block."""
        with memoryview(buffer) as view:
            for begin, end in data_runs(buffer, count):
                self.hash.update(view[begin:end])
                extend(self.runs, offset + begin, offset + end)

    def digest(self, size):
        """Return it: plain SHA-256 for a file without zero blocks."""
        data = self.hash.hexdigest()
        if not size or self.runs == [(0, size)]:
            return data
        return f"{data}+{hashlib.sha256(repr(self.runs).encode()).hexdigest()}"


def chunks(handle, runs, buffer):
    """Yield (offset, buffer, count) of a file's runs, in order; the last count is 0 when the file became shorter."""
    for begin, end in runs:
        offset = begin
        while offset < end:
            count = _fill(handle, buffer, offset, min(CHUNK, end - offset))
            yield offset, buffer, count
            if not count:
                return
            offset += count
            Alive.beat()


def _fill(handle, buffer, offset, most):
    count = 0
    with memoryview(buffer) as view:
        while count < most:
            got = os.preadv(handle, [view[count:most]], offset + count)
            if not got:
                break
            count += got
    return count


def kernels_runs(handle, status):
    """Return the data between the holes that the kernel tells of, in whole blocks."""
    size = status.st_size
    if status.st_blocks * 512 >= size:
        return [(0, size)]
    runs, offset = [], 0
    while offset < size:
        try:
            begin = os.lseek(handle, offset, os.SEEK_DATA) // BLOCK * BLOCK
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # only a hole is left
        offset = min(size, -(-os.lseek(handle, max(begin, offset), os.SEEK_HOLE) // BLOCK) * BLOCK)
        extend(runs, begin, offset)
    return runs


class Survey:
    """All there is in some folders; as it stands it only looks, and archive.py's own kind also writes."""

    def __init__(self):
        """Start with nothing seen."""
        self.hash, self.buffer, self.first_names = hashlib.sha256(), room(), {}
        self.counts = dict.fromkeys(("files", "folders", "links", "pipes", "bytes"), 0)
        self.left_out, self.changed = Counted(), Counted()

    def run(self, folders):
        """Look at everything in the folders."""
        for path, name, status in entries(folders, self.changed.add):
            self.entry(path, name, status)

    def told(self):
        """Return what the host is told of it."""
        lists = {"left_out": self.left_out.told(), "changed": self.changed.told()}
        return {"digest": self.hash.hexdigest(), **self.counts, **lists}

    def entry(self, path, name, status):
        """Look at one entry, which is in the current folder."""
        mode, twin = status.st_mode, (status.st_dev, status.st_ino)
        if stat.S_ISDIR(mode):
            found = xattrs_of(name)
            self.note("folders", b"d", path, status, *found)
            self.write(b"5", path, status, xattrs=found)
        elif stat.S_ISLNK(mode):
            target = os.readlink(name)
            self.note("links", b"l", path, status, target)
            self.write(b"2", path, status, link=target)
        elif stat.S_ISREG(mode) and twin in self.first_names:
            self.note("links", b"h", path, None, self.first_names[twin])
            self.write(b"1", path, status, link=self.first_names[twin])
        elif stat.S_ISREG(mode):
            self.file(path, name, status)
            if status.st_nlink > 1:
                self.first_names[twin] = path
        elif stat.S_ISFIFO(mode):
            self.note("pipes", b"p", path, status)
            self.write(b"6", path, status)
        else:
            self.left_out.add(path, "a socket" if stat.S_ISSOCK(mode) else "a device")

    def note(self, count, kind, path, status, *rest):
        """Add an entry to the digest: its fields, each with its length before it, so that no two trees read alike."""
        self.counts[count] += 1
        fields = [kind, path]
        if status is not None:
            mode = b"" if kind == b"l" else b"%o" % stat.S_IMODE(status.st_mode)
            fields += [mode, b"%d" % status.st_mtime_ns]
        for part in rest:
            fields += part if isinstance(part, tuple) else [part]
        text = b"".join(b"%d:%b," % (len(field), field) for field in fields)
        self.hash.update(b"%d:%b\n" % (len(text), text))

    def file(self, path, name, status):
        """Look at a plain file, from its beginning to its end."""
        handle, found = open_file(name, status.st_mode)
        try:
            self.read(handle, path, status, status.st_size, found)
            if sign(os.fstat(handle)) != sign(status):
                self.changed.add(path)
        finally:
            os.close(handle)

    def read(self, handle, path, status, size, found):
        """Read an open file's content, which is that of path."""
        content = Content()
        for offset, buffer, count in chunks(handle, kernels_runs(handle, status), self.buffer):
            content.add(offset, buffer, count)
        self.note_file(path, status, size, content, found)

    def note_file(self, path, status, size, content, found):
        """Add a file whose content was read to the digest."""
        self.counts["bytes"] += size
        self.note("files", b"f", path, status, b"%d" % size, content.digest(size).encode(), *found)

    def write(self, kind, path, status, *, link=b"", xattrs=()):
        """Write an entry; looking writes nothing."""
