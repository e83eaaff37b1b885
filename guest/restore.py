"""Put an archive of archive.py, on stdin, into the agent's folders, which are emptied first: restore.py FOLDER...

Nothing outside of the folders is made, and no link is followed: each member's folder is entered by its names, one by
one. It can be run again after it was stopped at any moment. Nothing is synced here: the host asks for that once it has
to last. It runs inside the sandbox, as the agent's own user, on the image's Python.
"""

import io
import os
import stat
import sys

sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # -I leaves it out

from sending import CHUNK, room
from tree import BLOCK, data_runs

HEADER_CAP = 64 << 20
TAIL_CAP = 65536  # tar fills its last record up with zeros


class Damaged(Exception):
    """What came is not an archive of ours, or not all of it."""


class Place:
    """The current folder, by its path in the archive; leaving a folder gives it its mode and time."""

    def __init__(self, folders):
        """Know the folders that an archive may hold."""
        self.tops = {os.path.basename(folder): folder for folder in folders}
        self.path, self.pending, self.tight = [], [], []

    def enter(self, names):
        """Make the folder with this path the current one: below the one we are in, or above it."""
        while self.path != names[: len(self.path)]:
            self.leave()
        for name in names[len(self.path) :]:
            raise Damaged(f"{name!r} has a member before the folder itself")

    def begin(self, names, mode, mtime_ns):
        """Make a folder, or take one of the given ones, and enter it."""
        self.enter(names[:-1])
        if len(names) == 1:
            os.chdir(self.tops[names[0]])
        else:
            os.mkdir(names[-1], 0o700)
            down(names[-1])
        self.path.append(names[-1])
        self.pending.append((mode, mtime_ns))

    def leave(self):
        """Finish the current folder and go up."""
        mode, mtime_ns = self.pending.pop()
        name = self.path.pop()
        os.utime(b".", ns=(mtime_ns, mtime_ns))
        if mode & 0o700 == 0o700:
            os.chmod(b".", mode)
        else:  # its files may have further names, which are made later
            self.tight.append(([*self.path, name], mode))
        if self.path:
            os.chdir(b"..")

    def finish(self):
        """Finish all folders; those that lock out their owner last, the innermost first."""
        while self.path:
            self.leave()
        for names, mode in sorted(self.tight, key=lambda one: -len(one[0])):
            handle = self.open(names)
            os.fchmod(handle, mode)
            os.close(handle)

    def open(self, names):
        """Return a folder opened, each of its names entered without following a link."""
        handle = os.open(self.tops[names[0]], os.O_RDONLY | os.O_DIRECTORY)
        for name in names[1:]:
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=handle)
            os.close(handle)
            handle = inner
        return handle

    def split(self, path):
        """Return a member's names, or refuse a path that could lead out of the folders."""
        names = path.split(b"/")
        if names[0] not in self.tops or any(name in {b"", b".", b".."} or b"\0" in name for name in names):
            raise Damaged(f"{path[:200]!r} is not a path of an archive")
        return names


def down(name):
    """Enter a folder, following no link."""
    handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchdir(handle)
    finally:
        os.close(handle)


class Member:
    """One member's header: its kind, path, link, size, mode, time, and extended attributes."""

    def __init__(self, block, records):
        """Read a ustar header, whose fields the pax records before it overrule."""
        self.kind = block[156:157]
        self.path = records.get(b"GNU.sparse.name") or records.get(b"path") or text(block[:100])
        self.link = records.get(b"linkpath") or text(block[157:257])
        self.size = int(records.get(b"size") or text(block[124:136]), 10 if b"size" in records else 8)
        self.mode = int(text(block[100:108]), 8)
        self.mtime_ns = (
            nanoseconds(records[b"mtime"]) if b"mtime" in records else 10**9 * int(text(block[136:148]), 8)
        )
        real = records.get(b"GNU.sparse.realsize")
        self.real_size = None if real is None else int(real)
        prefix = b"SCHILY.xattr."
        found = ((key[len(prefix) :], value) for key, value in records.items() if key.startswith(prefix))
        self.xattrs = [(key.replace(b"%3D", b"=").replace(b"%25", b"%"), value) for key, value in found]


def text(field):
    """Return a header's field up to its first NUL."""
    return field.partition(b"\0")[0]


def nanoseconds(value):
    """Return a pax time, such as -1.5, in nanoseconds."""
    whole, _, rest = value.lstrip(b"-").partition(b".")
    found = int(whole) * 10**9 + int(rest.ljust(9, b"0")[:9] or b"0")
    return -found if value.startswith(b"-") else found


class Source:
    """Stdin, read as an archive."""

    def __init__(self):
        """Read in large pieces."""
        self.file = io.BufferedReader(io.FileIO(0, closefd=False), CHUNK)
        self.buffer = room()

    def exactly(self, size):
        """Return so many bytes, or raise Damaged."""
        data = self.file.read(size)
        if len(data) != size:
            raise Damaged("it is cut short")
        return data

    def padded(self, size):
        """Return a member's small data."""
        if size > HEADER_CAP:
            raise Damaged("a header is too long")
        return self.exactly(size + -size % 512)[:size]

    def fill(self, size):
        """Read so many bytes into the buffer."""
        with memoryview(self.buffer) as view:
            if self.file.readinto(view[:size]) != size:
                raise Damaged("it is cut short")

    def members(self):
        """Yield each member; its data must be read before the next is asked for."""
        records = {}
        while True:
            block = self.exactly(512)
            if not block.strip(b"\0"):
                break
            if int(text(block[148:156]), 8) != sum(block) - sum(block[148:156]) + 256:
                raise Damaged("a header does not add up")
            if block[156:157] == b"x":
                records = pax(self.padded(int(text(block[124:136]), 8)))
                continue
            yield Member(block, records)
            records = {}
        rest = self.file.read(TAIL_CAP)
        if not 512 <= len(rest) < TAIL_CAP or rest.strip(b"\0"):
            raise Damaged("it has no end, or something follows it")


def pax(data):
    """Return pax records as a dict."""
    found = {}
    while data:
        length, _, rest = data.partition(b" ")
        key, _, value = rest[: int(length) - len(length) - 1].partition(b"=")
        if data[int(length) - 1 : int(length)] != b"\n":
            raise Damaged("a header does not read")
        found[key] = value[:-1]
        data = data[int(length) :]
    return found


class Restore:
    """An archive being put in its place."""

    def __init__(self, folders):
        """Take the folders that it may fill."""
        self.source, self.place = Source(), Place(folders)

    def run(self):
        """Put in every member."""
        for member in self.source.members():
            names = self.place.split(member.path.removesuffix(b"/") if member.kind == b"5" else member.path)
            if member.kind == b"5":
                self.place.begin(names, member.mode, member.mtime_ns)
                set_xattrs(b".", member.xattrs)
            else:
                self.place.enter(names[:-1])
                self.put(member, names[-1])
        self.place.finish()

    def put(self, member, name):
        """Make anything but a folder in the current one."""
        if member.kind == b"0":
            self.file(member, name)
        elif member.kind == b"1":
            source = self.place.split(member.link)
            handle = self.place.open(source[:-1])
            try:
                os.link(source[-1], name, src_dir_fd=handle, follow_symlinks=False)
            finally:
                os.close(handle)
        elif member.kind == b"2":
            os.symlink(member.link, name)
            os.utime(name, ns=(member.mtime_ns, member.mtime_ns), follow_symlinks=False)
        elif member.kind == b"6":
            os.mkfifo(name, 0o600)
            os.chmod(name, member.mode)
            os.utime(name, ns=(member.mtime_ns, member.mtime_ns))
        else:
            raise Damaged(f"a member of kind {member.kind!r}")

    def file(self, member, name):
        """Make a plain file, its zero blocks as holes."""
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            if member.size <= BLOCK and member.real_size is None:
                write(handle, self.source.padded(member.size))
            else:
                self.data(member, handle)
            set_xattrs(handle, member.xattrs)
            if member.mode != 0o600:
                os.fchmod(handle, member.mode)
            os.utime(handle, ns=(member.mtime_ns, member.mtime_ns))
        finally:
            os.close(handle)

    def data(self, member, handle):
        """Write a file's data, each run at its place."""
        size, runs = member.size, [(0, member.size)]
        if member.real_size is not None:
            size = member.real_size
            runs = self.runs()
        os.truncate(handle, size)
        total = 0
        for begin, length in runs:
            offset, end = begin, begin + length
            while offset < end:
                count = min(CHUNK, end - offset)
                self.source.fill(count)
                write_runs(handle, offset, self.source.buffer, count)
                offset += count
            total += length
        self.source.exactly(-total % 512)

    def runs(self):
        """Read the map of a sparse member: how many runs, then each one's offset and length, a line each."""
        held = bytearray()

        def number():
            while b"\n" not in held:
                held.extend(self.source.exactly(512))
            line, _, rest = held.partition(b"\n")
            held[:] = rest
            return int(line)

        return [(number(), number()) for _ in range(number())]


def write_runs(handle, offset, buffer, count):
    """Write a buffer's blocks but those that are all zero."""
    for begin, end in data_runs(buffer, count):
        write(handle, memoryview(buffer)[begin:end], offset + begin)


def write(handle, data, offset=0):
    """Write all data at an offset."""
    done = 0
    while done < len(data):
        done += os.pwrite(handle, data[done:], offset + done)


def set_xattrs(target, found):
    """Set extended attributes; a file system without them is an error, for the tree would not be the same."""
    for key, value in found:
        os.setxattr(target, key, value)


def clear(folder):
    """Remove everything in a folder, following no link, whatever the modes and however deep."""
    os.chdir(folder)
    os.chmod(b".", 0o700)
    levels, seen = [(b"", iter(os.listdir(b".")))], 0
    while levels:
        seen += 1
        if seen % 1000 == 0:
            os.write(2, b".")  # so that the host does not take it for a standstill
        name = next(levels[-1][1], None)
        if name is None:
            gone = levels.pop()[0]
            if levels:
                os.chdir(b"..")
                os.rmdir(gone)
        elif stat.S_ISDIR(os.lstat(name).st_mode):
            os.chmod(name, 0o700)
            down(name)
            levels.append((name, iter(os.listdir(b"."))))
        else:
            os.unlink(name)


def main(folders):
    """Empty the folders and fill them anew."""
    os.umask(0)
    try:
        for folder in folders:
            clear(folder)
        Restore(folders).run()
    except (Damaged, ValueError, KeyError, OSError) as error:
        print(f"{type(error).__name__}: {error}"[:500])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main([os.fsencode(word) for word in sys.argv[1:]]))
