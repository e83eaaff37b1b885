"""Run what an engine returns as the way into a capsule."""

from __future__ import annotations

import os
import subprocess
from typing import BinaryIO

from troupe_tasks import process
from troupe_tasks.sandbox import stream as streaming
from troupe_tasks.sandbox.capsule.engine import Entry


def pumped(
    entry: Entry,
    source: BinaryIO | bytes,
    sink: streaming.Kept | BinaryIO | None,
    *,
    cap_bytes: int,
    deadline_s: float,
    stop_at_cap: bool,
    stall_s: float | None = None,
) -> streaming.Pumped:
    """Run an entry to its end, its three pipes pumped."""
    pass_fds = () if entry.report_fd is None else (entry.report_fd,)
    pipe = subprocess.PIPE
    child = process.spawn(entry.argv, stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=pass_fds)
    return streaming.pump(
        child, source=source, sink=sink, cap_bytes=cap_bytes, deadline_s=deadline_s, stop_at_cap=stop_at_cap,
        stall_s=stall_s,
    )  # fmt: skip


def close(entry: Entry) -> bool:
    """Close an entry's report and tell whether the command inside had begun."""
    if entry.report_fd is None:
        return True
    try:
        return os.fstat(entry.report_fd).st_size > 0
    finally:
        os.close(entry.report_fd)
