"""Listen on and connect to Unix sockets whose path may be longer than the kernel's 107 bytes.

The folder is opened, and the socket named through /proc/self/fd: only the last name counts then (unix(7)).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from troupe_tasks import durable
from troupe_tasks.errors import StateUnreadable

if TYPE_CHECKING:
    import asyncio


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """Yield a short name for path, good while the block lasts."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def listen(path: Path, mode: int = 0o600, backlog: int = 128) -> socket.socket:
    """Return a listening socket at path, replacing one that the caller's lock proves dead."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with durable.told(path), short_name(path) as name:
            path.unlink(missing_ok=True)
            # Before bind, so that the file has no wider mode even for a moment (umask applies on top).
            os.fchmod(server.fileno(), mode)
            server.bind(name)
            Path(name).chmod(mode)
            server.listen(backlog)
    except BaseException:
        server.close()
        raise
    return server


def connect(path: Path, deadline_s: float) -> socket.socket:
    """Return a socket connected to path, whose every later call has the same deadline.

    Raises OSError (FileNotFoundError, ConnectionRefusedError, TimeoutError) as connect(2) does.
    """
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        client.settimeout(deadline_s)
        with short_name(path) as name:
            client.connect(name)
    except BaseException:
        client.close()
        raise
    return client


async def serve(
    listening: socket.socket,
    accept: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None],
    *,
    limit_bytes: int,
) -> asyncio.Server:
    """Serve a socket from listen(); limit_bytes bounds what each reader holds.

    This is start_server, not start_unix_server: from Python 3.13 on the latter looks up the socket's name, and
    the short name that it was bound by means something else by then.
    """
    import asyncio

    return await asyncio.start_server(accept, sock=listening, limit=limit_bytes, backlog=512)


def ask(path: Path, line: bytes, *, deadline_s: float, cap_bytes: int = 1 << 20) -> bytes:
    """Send one line to the server at path and return its one line, without the end of line.

    Raises OSError as connect() does, and StateUnreadable for an answer that is cut or over the cap.
    """
    with connect(path, deadline_s) as client:
        client.sendall(line + b"\n")
        answer = bytearray()
        while not answer.endswith(b"\n"):
            chunk = client.recv(65536)
            answer += chunk
            if not chunk or len(answer) > cap_bytes:
                raise StateUnreadable(f"the answer from {path} is cut or too long")
    return bytes(answer[:-1])
