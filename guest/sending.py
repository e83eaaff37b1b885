"""What archive.py and hermes.py share: stdout that is counted, a report for the host, a scratch folder."""

import contextlib
import hashlib
import json
import os
import queue
import shutil
import threading

CHUNK = 1 << 20
_BUFFERS = 4
SCRATCH = b".troupe-scratch"  # on the agent's disk, because /tmp is memory; never in an archive


class Out:
    """Stdout, counted and hashed, written in large pieces by a thread while the next ones are read."""

    def __init__(self):
        """Start at the stream's beginning."""
        self.hash, self.bytes, self.held, self.error = hashlib.sha256(), 0, bytearray(), None
        self.free, self.todo = queue.SimpleQueue(), queue.SimpleQueue()
        for _ in range(_BUFFERS):
            self.free.put(bytearray(CHUNK))
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def buffer(self):
        """Return a buffer to fill and give to lend(), as soon as one is free."""
        return self.free.get()

    def lend(self, buffer, count):
        """Write the beginning of a buffer of ours, which is free again after that."""
        self.flush()
        self.todo.put((buffer, count, True))

    def write(self, data):
        """Write bytes; small ones are held until there are enough."""
        self.held += data
        if len(self.held) >= CHUNK:
            self.flush()

    def flush(self):
        """Pass on what is held."""
        if self.held:
            held, self.held = self.held, bytearray()
            self.todo.put((held, len(held), False))
        if self.error is not None:
            raise self.error

    def end(self):
        """Wait until all is written."""
        self.flush()
        self.todo.put(None)
        self.thread.join()
        if self.error is not None:
            raise self.error

    def told(self):
        """Return what was sent, for the report."""
        return {"bytes": self.bytes, "sha256": self.hash.hexdigest()}

    def _work(self):
        while (piece := self.todo.get()) is not None:
            buffer, count, ours = piece
            with memoryview(buffer) as view:
                try:
                    self._pass_on(view[:count])
                except OSError as error:
                    self.error = error
            if ours:
                self.free.put(buffer)

    def _pass_on(self, data):
        self.hash.update(data)
        self.bytes += len(data)
        while data and self.error is None:
            data = data[os.write(1, data) :]


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
