"""What the programs of archives share: buffers, stdout that is counted, a report for the host, a scratch folder."""

import contextlib
import hashlib
import json
import mmap
import os
import shutil
import threading
import time

CHUNK = 1 << 20
SMALL = 65536
SAMPLE, SAMPLE_EVERY = 4096, 65536  # as in troupe_tasks/archives/take.py
SCRATCH = b".troupe-scratch"  # on the agent's disk, because /tmp is memory; never in an archive


def room():
    """Return room for one piece, of memory that nobody has touched: gVisor then has it in one, not in 256 pages.

    It reads a file into that three times as fast as into a bytearray.
    """
    return mmap.mmap(-1, CHUNK)


class Out:
    """Stdout, counted and sampled, written in large pieces; the pipe itself is what a piece waits in."""

    def __init__(self):
        """Start at the stream's beginning."""
        self.sample, self.bytes, self.held = hashlib.sha256(), 0, bytearray()

    def write(self, data):
        """Write bytes; small ones are held until there are enough."""
        if len(data) > SMALL:
            self.flush()
            self._pass_on(data)
            return
        self.held += data
        if len(self.held) >= CHUNK:
            self.flush()

    def flush(self):
        """Pass on what is held."""
        held, self.held = self.held, bytearray()
        self._pass_on(held)

    def told(self):
        """Return what was sent, for the report."""
        return {"bytes": self.bytes, "sample": self.sample.hexdigest()}

    def _pass_on(self, data):
        with memoryview(data) as view:
            for begin in range(-(self.bytes % SAMPLE_EVERY), len(view), SAMPLE_EVERY):
                self.sample.update(view[max(0, begin) : max(0, begin + SAMPLE)])
            self.bytes += len(view)
            done = 0
            while done < len(view):
                done += os.write(1, view[done:])


class Beating:
    """A byte on stderr now and then, while something works that says nothing, so that the host sees no standstill.

    After an hour it falls silent: then the host takes it for one.
    """

    def __init__(self, every_s=2.0, for_s=3600.0):
        """Say how often, and for how long."""
        self.every_s, self.for_s, self.over = every_s, for_s, threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        """Beat until it is over."""
        end = time.monotonic() + self.for_s
        while not self.over.wait(self.every_s) and time.monotonic() < end:
            os.write(2, b".")

    def __enter__(self):
        """Begin."""
        self.thread.start()
        return self

    def __exit__(self, *_error):
        """End."""
        self.over.set()
        self.thread.join()


class Scratch:
    """A folder for a while, on the agent's disk."""

    def __init__(self, folder):
        """Make it anew; the folder that it is in keeps its time."""
        self.folder, self.path = folder, os.path.join(folder, SCRATCH)
        self.before = os.stat(folder)
        self.remove()
        os.mkdir(self.path, 0o700)
        self.keep_time()

    def keep_time(self):
        """Undo what our own coming and going did to the folder's time."""
        os.utime(self.folder, ns=(self.before.st_atime_ns, self.before.st_mtime_ns))

    def remove(self):
        """Remove it with all it has."""
        if os.path.isdir(self.path) and not os.path.islink(self.path):
            shutil.rmtree(self.path)
        elif os.path.lexists(self.path):
            os.remove(self.path)
        self.keep_time()


def check_database(path, *statements):
    """Have SQLite check a database that is ours alone, then do the statements. Raises sqlite3.Error, ValueError."""
    import sqlite3

    with contextlib.closing(sqlite3.connect(os.fsdecode(path))) as database:
        if database.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)]:
            raise ValueError("SQLite finds it damaged")
        for statement in statements:
            database.execute(statement)


def report_file(nonce):
    """Return where the report of a stream is kept until the host asks for it."""
    return os.path.join(os.environ.get("TMPDIR", "/tmp"), f"troupe-archive-{nonce}.json")


def reported(nonce, work):
    """Do work, keep the report that it returns or its error for told(), and return the exit status."""
    try:
        report, status = work(), 0
    except (OSError, ValueError) as error:
        report, status = {"error": f"{type(error).__name__}: {error}"[:500]}, 1
    handle = os.open(report_file(nonce), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        json.dump(report, file)
    return status


def told(nonce):
    """Print a report, once."""
    with open(report_file(nonce), encoding="ascii") as file:
        print(file.read(65536))
    os.remove(report_file(nonce))
    return 0
