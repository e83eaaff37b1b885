"""Judge a runsc by what it does, not by its version: Debian 12's build starts, and then can't list a folder.

The answer is remembered for this boot and this very file.
"""

from __future__ import annotations

from pathlib import Path

from troupe_tasks import durable, process
from troupe_tasks.errors import NotReady, ToolFailed
from troupe_tasks.paths import Paths
from troupe_tasks.text import line

_DEADLINE_S = 20.0
_SCRIPT = """\
import os, socket
os.listdir("/usr"); os.stat("/usr/bin"); os.listdir("/proc/self")
try:
    socket.create_connection(("192.0.2.1", 80), 2)
except OSError:
    print("troupe-probe-ok")
"""


def check(paths: Paths, binary: Path) -> None:
    """Raise NotReady when this runsc does not run a program, list a folder and refuse the network."""
    remembered = paths.run / "runsc.probe"
    key = _key(binary)
    try:
        if durable.read_private(remembered) == key:
            return
    except FileNotFoundError:
        pass
    _try(paths, binary)
    durable.make_private_dir(paths.run)
    durable.write(remembered, key)


def _key(binary: Path) -> bytes:
    # Which file it is, not what is in it: hashing 30 MB at every command would be felt.
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    found = binary.stat()
    parts = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    return f"{boot} {binary} {' '.join(map(str, parts))}\n".encode()


def _try(paths: Paths, binary: Path) -> None:
    from troupe_tasks.sandbox.capsule.gvisor import flags

    root = durable.make_private_dir(paths.run / "runsc-probe")
    try:
        command = [*flags(binary, root), "do", "/usr/bin/python3", "-I", "-S", "-c", _SCRIPT]
        done = process.run(command, deadline_s=_DEADLINE_S, cap_bytes=65536)
    except ToolFailed as error:
        raise _broken(binary, str(error)) from None
    finally:
        durable.remove_tree(root)
    if b"troupe-probe-ok" not in done.stdout:
        raise _broken(binary, line(done.stderr[-300:]))


def _broken(binary: Path, cause: str) -> NotReady:
    return NotReady(
        f"{binary} does not work on this machine", cause=cause,
        hint="Remove it; troupe then fetches Debian 13's build. Debian 12's runsc is known not to work.",
    )  # fmt: skip
