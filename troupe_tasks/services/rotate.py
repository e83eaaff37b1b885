"""Keep the services' logs small where systemd writes them; started by troupe-logs.timer, by path, without the package.

systemd holds a log open for appending, so it is copied and emptied, never renamed: what is written in the moment
between may be lost. Only the last bytes of a flood are copied.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

_NAMES = ("gateway*.log", "broker.log", "rehearsal.log")
_LIMIT_BYTES = 5_000_000
_KEPT = 3


def rotate(log: Path, *, limit_bytes: int = _LIMIT_BYTES) -> bool:
    """Move a log that is over the limit to LOG.1, and older ones on; tell whether it was."""
    handle = os.open(log, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "r+b") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_size <= limit_bytes:
            return False
        file.seek(-limit_bytes, os.SEEK_END)
        last = file.read(limit_bytes)
        # The log first: on a full disk its room is what the copy needs.
        file.truncate(0)
    for number in range(_KEPT - 1, 0, -1):
        older = _numbered(log, number)
        if older.exists():
            older.replace(_numbered(log, number + 1))
    copy = os.open(
        _numbered(log, 1), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    with os.fdopen(copy, "wb") as file:
        file.write(last)
    return True


def _numbered(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")


def main(folder: str) -> int:
    """Rotate every service's log in the folder of logs; one that can't be does not keep the others from it."""
    failed = 0
    for log in sorted(path for name in _NAMES for path in Path(folder).glob(f"*/{name}")):
        try:
            rotate(log)
        except OSError as error:
            sys.stderr.write(f"{log}: {error.strerror}\n")
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
