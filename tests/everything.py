"""Programs for tests of archives, run here or inside a sandbox: `make STATE WORKSPACE` and `tell FOLDER...`.

make fills two folders with all that a file system can hold; tell prints what is there, one JSON string, by plain means
and none of our code. It is handed over as text (python -c), so it imports only the standard library.
"""

import hashlib
import json
import os
import shutil
import socket
import sqlite3
import stat
import sys
import tempfile

ODD = [b"new\nline", b"\xff\xfe", b"-rf", b"x" * 255, b" ", "é\u202e".encode(), b"a\\b", b"*", b"...", b"%3D"]


def fill(name: bytes, *pieces: bytes | int, mode: int = 0o644) -> None:
    """Write a file; a number is a hole of that many bytes."""
    with open(name, "wb") as file:
        for piece in pieces:
            if isinstance(piece, int):
                file.seek(piece, os.SEEK_CUR)
            else:
                file.write(piece)
        file.truncate()
    os.chmod(name, mode)


def database(path: bytes) -> None:
    """Leave a database whose last rows are still beside it, as a killed program does."""
    if os.fork() == 0:
        held = sqlite3.connect(os.fsdecode(path), isolation_level=None)
        held.executescript("PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0; CREATE TABLE t (n)")
        held.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(500)])
        os.kill(os.getpid(), 9)
    os.wait()


def make(state: bytes, workspace: bytes) -> None:
    """Fill the two folders."""
    os.makedirs(state + b"/hermes")
    fill(state + b"/hermes/plain.txt", b"plain\n", mode=0o600)
    database(state + b"/hermes/state.db")
    fill(state + b"/hermes/broken.db", b"no database")
    fill(state + b"/hermes/broken.db-wal", b"nor this")
    os.chdir(workspace)
    for number, odd in enumerate(ODD):
        fill(odd, b"odd %d" % number, mode=0o700 + number)
        os.mkdir(b"in-" + odd[:200])
        fill(b"in-" + odd[:200] + b"/" + odd, odd)
    fill(b"big", os.urandom(3 << 20) + b"tail")
    fill(b"empty")
    fill(b"zeros", bytes(1 << 20))
    fill(b"sparse", 1 << 20, b"x", (30 << 20) + 17, b"y" * 5000, 1 << 20)
    fill(b"small-sparse", b"a", 200_000, b"b")
    fill(b"only-a-hole", 40 << 20)
    fill(b"page-holes", *[piece for _ in range(100) for piece in (b"d" * 4096, 4096)])
    fill(b"setuid", b"#!", mode=0o4755)
    fill(b".troupe-scratch", b"the agent's own")
    fill(b"shut", b"nobody reads this", mode=0)
    deep = b"d" * 100
    os.makedirs(b"deep")
    os.chdir(b"deep")
    for _ in range(60):  # a path of 6,000 bytes, more than the system takes at once
        os.mkdir(deep)
        os.chdir(deep)
    fill(b"bottom", b"here")
    os.chdir(workspace)
    os.makedirs(b"empty-folder/another")
    os.link(b"big", b"deep/big-again")
    os.link(b"big", b"a-first-name")
    os.symlink(b"/nowhere/at/all", b"dangling")
    os.symlink(b"../../../etc", b"outwards")
    os.symlink(b"t" * 300, b"long-link")
    os.symlink(b".", b"loop")
    os.mkfifo(b"pipe", 0o640)
    server = socket.socket(socket.AF_UNIX)
    server.bind("socket")
    os.mkdir(b"locked")
    fill(b"locked/inside", b"kept")
    os.mkdir(b"locked/further", 0o500)
    marked(b"big")
    marked(b"empty-folder")
    for number, name in enumerate(
        (b"big", b"empty", b"sparse", b"pipe", b"dangling", b"empty-folder/another", b"loop")
    ):
        os.utime(name, ns=(1, 1_234_567_890_123_456_789 + number), follow_symlinks=False)
    os.utime(b"setuid", (0, 0))
    os.chmod(b"locked", 0)
    os.utime(workspace, ns=(5, 1_500_000_000_000_000_005))


def marked(name: bytes) -> None:
    """Give extended attributes, where the file system has them."""
    try:
        os.setxattr(name, b"user.plain", b"value")
        os.setxattr(name, b"user.odd=%name\n", bytes(range(256)))
    except OSError:
        return


def tell(*folders: bytes) -> str:
    """Return what is there: {path: [type and mode, time, size, content or target, further name of, attributes]}."""
    found: dict[str, list[object]] = {}
    twins: dict[tuple[int, int], str] = {}
    for folder in folders:
        os.chdir(os.path.dirname(folder))
        _tell(os.path.basename(folder), "", found, twins)
    return json.dumps(found, sort_keys=True)


def _tell(name: bytes, above: str, found: dict[str, list[object]], twins: dict[tuple[int, int], str]) -> None:
    status, path = os.lstat(name), above + os.fsdecode(name)
    mode = status.st_mode
    if stat.S_ISSOCK(mode) or path.endswith(("/state.db-wal", "/state.db-shm")):
        return
    twin = twins.setdefault((status.st_dev, status.st_ino), path) if stat.S_ISREG(mode) else path
    kind = [oct(mode) if not stat.S_ISLNK(mode) else "link", str(status.st_mtime_ns)]
    found[path] = [*kind, twin if twin != path else ""]
    if stat.S_ISLNK(mode):
        found[path].append(os.fsdecode(os.readlink(name)))
    elif stat.S_ISREG(mode):
        os.chmod(name, stat.S_IMODE(mode) | 0o400)
        found[path] += [_content(name, path), _attributes(name)]
        os.chmod(name, stat.S_IMODE(mode))
    elif stat.S_ISDIR(mode):
        os.chmod(name, stat.S_IMODE(mode) | 0o700)
        found[path].append(_attributes(name))
        os.chdir(name)
        for inner in sorted(os.listdir(b".")):
            _tell(inner, path + "/", found, twins)
        os.chdir("..")
        os.chmod(name, stat.S_IMODE(mode))


def _content(name: bytes, path: str) -> list[object]:
    if path.endswith("/state.db"):
        with tempfile.TemporaryDirectory() as place:  # SQLite would leave its traces beside it
            for side in (b"", b"-wal"):
                if os.path.exists(name + side):
                    shutil.copy(name + side, os.path.join(os.fsencode(place), b"copy.db" + side))
            held = sqlite3.connect(os.path.join(place, "copy.db"))
            rows = held.execute("SELECT count(*), sum(n) FROM t").fetchall()
            held.close()
            return rows
    with open(name, "rb") as file:
        return [hashlib.file_digest(file, "sha256").hexdigest()]


def _attributes(name: bytes) -> list[list[str]]:
    try:
        names = sorted(os.listxattr(name))
        return [[key, os.getxattr(name, key).hex()] for key in names if key.startswith("user.")]
    except OSError:
        return []


if __name__ == "__main__":
    sys.setrecursionlimit(5000)
    work, *words = sys.argv[1:]
    if work == "make":
        make(*map(os.fsencode, words))
    else:
        print(tell(*map(os.fsencode, words)))
