"""`troupe logs ID`."""

from __future__ import annotations

import os
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from invoke import Context

from troupe_tasks.commands.frame import command
from troupe_tasks.names import SHARED

_TAIL_BYTES = 64 << 10


@command(
    example="troupe logs mr-doyle --follow",
    flags={
        "agent": "The agent's ID, or broker or rehearsal for the machine's own services.",
        "follow": "Go on showing what is added.",
        "egress": "Show the audit log of its network traffic instead.",
    },
    positional=("agent",),
)
def logs(
    context: Context,
    agent: str,
    follow: bool = False,
    egress: bool = False,
    json: bool = False,
    debug: bool = False,
) -> None:
    """Show what an agent's gateway said, escaped, the end of it first to last."""
    from troupe_tasks.commands.agent import chosen
    from troupe_tasks.commands.output import show_json
    from troupe_tasks.errors import NotFound, UsageError
    from troupe_tasks.operations.delete import known
    from troupe_tasks.text import escape

    if json and follow:
        raise UsageError(
            "--json and --follow can't go together", hint="One document has an end: leave one out."
        )
    house, agent_id = chosen(agent)
    if agent_id not in SHARED and not known(house.paths, agent_id):
        raise NotFound(f"there is no agent {agent_id}")
    name = "egress.jsonl" if egress else f"{agent_id if agent_id in SHARED else 'gateway'}.log"
    if json:
        whole = b"".join(_pieces(house.paths.logs(agent_id) / name, follow=False))
        show_json({"agent": agent_id, "lines": escape(whole).splitlines()})
        return
    # A piece may end within a character.
    decoder = getincrementaldecoder("utf-8")("backslashreplace")
    try:
        for piece in _pieces(house.paths.logs(agent_id) / name, follow=follow):
            print(escape(decoder.decode(piece)), end="", flush=True)
    except KeyboardInterrupt:
        if follow:
            sys.exit(130)  # this is how following ends: there is nothing to say of it
        raise
    print(escape(decoder.decode(b"", final=True)), end="")


def _pieces(path: Path, *, follow: bool) -> Iterator[bytes]:
    """Yield the file's end, from a line's start, then what is added; of a rotated file the rest, then the new one."""
    import time

    from troupe_tasks.durable import told

    with told(path):
        file = _opened(path)
        if file is not None and file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES)) > 0:
            file.readline(_TAIL_BYTES)
        while True:
            while file is not None and (piece := file.read(_TAIL_BYTES)):
                yield piece
            if not follow:
                break
            newer = _newer(path, file)
            if newer is None:
                time.sleep(0.2)
            elif file is not None:
                while piece := file.read(_TAIL_BYTES):  # added since the last look, before it was moved away
                    yield piece
                file.close()
            file = newer or file
        if file is not None:
            file.close()


def _opened(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None


def _newer(path: Path, file: BinaryIO | None) -> BinaryIO | None:
    """Return the file that stands in the place of this one by now; one that was emptied is gone on with anew."""
    if file is None:
        return _opened(path)
    known = os.fstat(file.fileno())
    if known.st_size < file.tell():
        file.seek(0)
    try:
        return None if os.path.samestat(path.stat(), known) else _opened(path)
    except FileNotFoundError:
        return None
