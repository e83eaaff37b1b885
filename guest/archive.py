"""Write the agent's folders as a tar archive (files), or tell what is there (manifest) or how much (measure).

Arguments: `files NONCE FOLDER...`, `manifest FOLDER...`, `measure FOLDER...`, and `told NONCE`, which prints the
report of an earlier `files` once. It runs inside the sandbox, as the agent's own user, on the image's Python.
docs/backups.md tells the format.
"""

import errno
import json
import os
import shutil
import stat
import sys

sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # -I leaves it out

from sending import SCRATCH, Beating, Out, Scratch, check_database, reported, told
from tree import (
    BLOCK,
    CHUNK,
    ZERO_BLOCK,
    Content,
    Counted,
    Signs,
    Survey,
    chunks,
    data_runs,
    entries,
    extend,
    kernels_runs,
    sign,
)

WORTH = 65536  # bytes of holes that pay for a member of the sparse kind
PROBES = 64
DATABASES = b"hermes"  # the folder in the first one that holds Hermes's own
USTAR_SIZE = 8 << 30
FULL = (errno.ENOSPC, errno.EDQUOT)


def record(key, value):
    """Return a pax record: its length, which counts itself, a space, key=value, a newline."""
    rest = len(key) + len(value) + 3
    size = rest + len(str(rest))
    size = rest + len(str(size))
    return b"%d %b=%b\n" % (size, key, value)


def header(kind, name, status, *, mode, size=0, time_s=0, link=b""):
    """Return a ustar header; what it can't hold is in a pax record before it."""
    owner = b"%07o\0%07o\0" % (min(status.st_uid, 0o7777777), min(status.st_gid, 0o7777777))
    block = bytearray(name[:100].ljust(100, b"\0"))
    block += b"%07o\0" % mode + owner + b"%011o\0%011o\0" % (size, time_s) + b" " * 8 + kind
    block += link[:100].ljust(100, b"\0") + b"ustar\00000" + bytes(64) + b"0000000\0" * 2 + bytes(167)
    block[148:156] = b"%06o\0 " % sum(block)
    return block


class Archive(Survey):
    """A survey that writes what it sees, in the pax format, and looks again at the end."""

    def __init__(self):
        """Start an empty archive."""
        super().__init__()
        self.out, self.signs, self.raw = Out(), Signs(), Counted()
        self.stand_ins, self.unneeded = {}, set()

    def run(self, folders):
        """Write everything in the folders, then see whether any of it has changed since it was read."""
        databases = unfinished(os.path.join(folders[0], DATABASES))
        # None without a need: whoever is killed between making it and undoing that leaves the folder another time.
        left = os.path.lexists(os.path.join(folders[0], SCRATCH))
        scratch = self.scratch(folders[0], databases) if databases or left else None
        try:
            for name in databases if scratch is not None else ():
                self.settle(folders[0], scratch, name)
            super().run(folders)
            self.out.write(bytes(1024))
            self.out.flush()
            for path, _name, status in entries(folders, self.changed.add):
                if not self.signs.same(path, status):
                    self.changed.add(path)
        finally:
            if scratch is not None:
                scratch.remove()

    def told(self):
        """Return what the host is told."""
        return {**super().told(), "raw": self.raw.told(), "stream": self.out.told()}

    def scratch(self, folder, databases):
        """Return a scratch folder; on a full disk None, and the databases go as they lie: to move may be the cure."""
        try:
            return Scratch(folder)
        except OSError as error:
            if error.errno not in FULL:
                raise
            for name in databases:
                self.raw.add(database_path(folder, name), str(error))
            return None

    def settle(self, folder, scratch, name):
        """Have a whole copy of a database of Hermes that is in two files now."""
        path = database_path(folder, name)
        try:
            with Beating():
                self.stand_ins[path] = whole_database(scratch.path, os.path.join(folder, DATABASES), name)
            self.unneeded |= {path + side for side in (b"-wal", b"-shm", b"-journal")}
        except (OSError, ValueError) as error:  # its files as they are hold the same: nothing is lost
            self.raw.add(path, str(error))

    def entry(self, path, name, status):
        """Write one entry."""
        self.signs.note(path, status)
        if path not in self.unneeded:
            super().entry(path, name, status)

    def file(self, path, name, status):
        """Write a plain file, or the whole copy of a database."""
        copy = self.stand_ins.get(path)
        if copy is None:
            super().file(path, name, status)
            return
        handle = os.open(copy, os.O_RDONLY)
        try:
            self.read(handle, path, status, os.fstat(handle).st_size, [])
        finally:
            os.close(handle)

    def read(self, handle, path, status, size, found):
        """Write a file's content, without its holes where that pays."""
        content = Content()
        if size <= CHUNK:
            count = next(chunks(handle, [(0, size)], self.buffer), (0, None, 0))[2]
            runs = data_runs(self.buffer, count)
            if count == size and size - sum(end - begin for begin, end in runs) < WORTH:
                content.add(0, self.buffer, count)
                self.write(b"0", path, status, size=size, xattrs=found)
                self.out.write(memoryview(self.buffer)[:count])
                self.out.write(bytes(-size % 512))
                self.note_file(path, status, size, content, found)
                return
        else:
            runs = self.runs(handle, os.fstat(handle))
        total = sum(end - begin for begin, end in runs)
        if size - total < WORTH:
            runs, total = [(0, size)], size
            self.write(b"0", path, status, size=size, xattrs=found)
        else:
            places = "".join(f"{begin}\n{end - begin}\n" for begin, end in [*runs, (size, size)])
            text = f"{len(runs) + 1}\n{places}".encode()
            text += bytes(-len(text) % 512)
            self.write(b"0", path, status, size=len(text) + total, xattrs=found, real_size=size)
            self.out.write(text)
        missing = total
        for offset, buffer, count in chunks(handle, runs, self.buffer):
            content.add(offset, buffer, count)
            self.out.write(memoryview(buffer)[:count])
            missing -= count
        while missing:  # it became shorter: said by its sign, and the archive stays readable
            missing -= (count := min(missing, CHUNK))
            self.out.write(bytes(count))
        self.out.write(bytes(-total % 512))
        self.note_file(path, status, size, content, found)

    def runs(self, handle, status):
        """Return where a large file's data is: as the kernel tells or, where it tells nothing (gVisor), by looking."""
        size, runs = status.st_size, kernels_runs(handle, status)
        step = size // PROBES // BLOCK * BLOCK
        empty = sum(os.pread(handle, BLOCK, step * number) == ZERO_BLOCK for number in range(PROBES))
        if runs != [(0, size)] or empty * 8 < PROBES:  # few holes cost less than reading the file twice
            return runs
        found = []
        for offset, buffer, count in chunks(handle, runs, self.buffer):
            for begin, end in data_runs(buffer, count):
                extend(found, offset + begin, offset + end)
        return found

    def write(self, kind, path, status, *, link=b"", xattrs=(), size=0, real_size=None):
        """Write a member's header; its data, of size bytes, comes next."""
        records, name = [], path
        if real_size is not None:
            records = [(b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.name", path)]
            records.append((b"GNU.sparse.realsize", b"%d" % real_size))
            name = b"GNUSparseFile.0/" + path[-80:]
        elif len(path) > 100:
            records.append((b"path", path))
        if len(link) > 100:
            records.append((b"linkpath", link))
        if size >= USTAR_SIZE:
            records.append((b"size", b"%d" % size))
        seconds, rest = divmod(abs(status.st_mtime_ns), 10**9)
        before = status.st_mtime_ns < 0
        if rest or before or seconds >= USTAR_SIZE:
            records.append((b"mtime", b"%b%d.%09d" % (b"-" if before else b"", seconds, rest)))
        for key, value in xattrs:
            plain = key.replace(b"%", b"%25").replace(b"=", b"%3D")  # as GNU tar writes them
            records.append((b"SCHILY.xattr." + plain, value))
        if records:
            data = b"".join(record(key, value) for key, value in records)
            self.out.write(header(b"x", b"PaxHeaders/0", status, mode=0o600, size=len(data)))
            self.out.write(data + bytes(-len(data) % 512))
        self.out.write(header(
            kind, name, status, mode=stat.S_IMODE(status.st_mode), link=link,
            size=size if size < USTAR_SIZE else 0, time_s=0 if before else min(seconds, USTAR_SIZE - 1),
        ))  # fmt: skip


def database_path(folder, name):
    """Return a database's path in the archive."""
    return b"/".join((os.path.basename(folder), DATABASES, name))


def unfinished(home):
    """Return the names of Hermes's databases that are in two files now; the agent's own are left alone."""
    names = sorted(os.listdir(home)) if os.path.isdir(home) else []
    return [name for name in names if name.endswith(b".db") and has_side(home, name)]


def has_side(home, name):
    """Tell whether part of a database is still in a file beside it."""
    sides = (os.path.join(home, name + side) for side in (b"-wal", b"-journal"))
    return any(os.path.isfile(side) and os.path.getsize(side) for side in sides)


def whole_database(scratch, home, name):
    """Return a copy of a database into which SQLite has put what was beside it. Raises OSError, ValueError."""
    import sqlite3

    copy = os.path.join(scratch, name)
    for side in (b"", b"-wal", b"-journal"):
        source = os.path.join(home, name + side)
        if os.path.lexists(source):
            before = os.lstat(source)
            if not stat.S_ISREG(before.st_mode):
                raise ValueError("not plain files")
            shutil.copyfile(source, copy + side)
            if sign(os.lstat(source)) != sign(before):
                raise ValueError("in use")
    try:
        check_database(copy, "PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        raise ValueError(str(error)) from None
    if has_side(scratch, name):
        raise ValueError("SQLite left a part of it beside it")
    return copy


def measure(folders):
    """Return what the folders hold on their disk, at most: what the entries take, or what is taken of the disk."""
    total, count, seen = 0, 0, set()
    for _path, _name, status in entries(folders, lambda _path: None):
        twin = (status.st_dev, status.st_ino)
        if twin not in seen:
            total += min(status.st_blocks * 512, -(-status.st_size // BLOCK) * BLOCK)
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            seen.add(twin)
        count += 1
    disks = {os.stat(folder).st_dev: os.statvfs(folder) for folder in folders}
    taken = sum((disk.f_blocks - disk.f_bfree) * disk.f_frsize for disk in disks.values())
    return {"bytes": min(total, taken), "entries": count}


def write_files(folders):
    """Write the archive to stdout and return its report."""
    archive = Archive()
    archive.run(folders)
    return archive.told()


def main(work, *words):
    """Do one of the works and return the exit status."""
    if work == "files":
        return reported(words[0], lambda: write_files([os.fsencode(word) for word in words[1:]]))
    if work == "told":
        return told(words[0])
    folders = [os.fsencode(word) for word in words]
    if work == "manifest":
        survey = Survey()
        survey.run(folders)
        print(json.dumps(survey.told()))
    else:
        print(json.dumps(measure(folders)))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
