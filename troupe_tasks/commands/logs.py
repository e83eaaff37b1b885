"""`troupe logs ID`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from invoke import Context

from troupe_tasks.commands.frame import command

_TAIL_BYTES = 64 << 10
_SHARED = ("broker", "rehearsal")


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
    context: Context, agent: str, follow: bool = False, egress: bool = False, debug: bool = False
) -> None:
    """Show what an agent's gateway said, escaped, the end of it first to last."""
    from troupe_tasks.commands.agent import chosen
    from troupe_tasks.errors import NotFound
    from troupe_tasks.operations.delete import known
    from troupe_tasks.text import escape

    house, agent_id = chosen(agent)
    if agent_id not in _SHARED and not known(house.paths, agent_id):
        raise NotFound(f"there is no agent {agent_id}")
    name = "egress.jsonl" if egress else f"{agent_id if agent_id in _SHARED else 'gateway'}.log"
    for piece in _pieces(house.paths.logs(agent_id) / name, follow=follow):
        print(escape(piece), end="", flush=True)


def _pieces(path: Path, *, follow: bool) -> Iterator[bytes]:
    """Yield the file's end, then what is added; a rotated file is taken up anew."""
    import time

    from troupe_tasks.durable import told

    place, inode = -1, -1
    while True:
        with told(path):
            try:
                found = path.stat()
                with path.open("rb") as file:
                    if found.st_ino != inode or found.st_size < place:
                        place = max(0, found.st_size - _TAIL_BYTES) if inode == -1 else 0
                        inode = found.st_ino
                    file.seek(place)
                    piece = file.read(_TAIL_BYTES)
                    place += len(piece)
            except FileNotFoundError:
                piece = b""
        if piece:
            yield piece
        elif not follow:
            return
        else:
            time.sleep(0.2)
