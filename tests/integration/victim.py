"""Run one troupe command and end by SIGKILL at a point: `victim.py OPERATION/STEP/POINT COMMAND...`.

`before`, `done` and `after` are the journal's own points; `inside` is right after the step's first call of a seam
by which troupe changes anything. `victim.py calls/N COMMAND...` ends after the Nth such call of the whole command.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from troupe_tasks import durable, journal, process
from troupe_tasks.__main__ import main

SEAMS = (
    (durable, ("write", "rename", "remove_tree")),
    (process, ("run", "spawn")),
)  # fmt: skip


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL did not kill")


class Countdown:
    """Ends the process after the call that takes it to zero; not armed, it counts nothing."""

    def __init__(self, left: int, *, armed: bool) -> None:
        self.left, self.armed = left, armed

    def wrap(self, name: str, seam: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(seam)
        def call(*args: Any, **named: Any) -> Any:
            result = seam(*args, **named)
            if self.armed:
                self.left -= 1
                if self.left == 0:
                    print(f"victim: killed after {name}", file=sys.stderr, flush=True)
                    die()
            return result

        return call


def watch(countdown: Countdown) -> None:
    for module, names in SEAMS:
        for name in names:
            setattr(module, name, countdown.wrap(f"{module.__name__}.{name}", getattr(module, name)))


def at(wanted: str) -> None:
    step, _, point = wanted.rpartition("/")
    if step == "calls":
        watch(Countdown(int(point), armed=True))
        return
    countdown = Countdown(1, armed=False)
    watch(countdown)

    def reached(place: str) -> None:
        if point == "inside" and place == f"{step}/before":
            countdown.armed = True
        elif point == "inside" and place == f"{step}/done":
            print(f"victim: {step} calls no seam; killed at its end", file=sys.stderr, flush=True)
            die()
        elif place == wanted:
            die()

    journal.reached = reached


if __name__ == "__main__":
    at(sys.argv[1])
    sys.argv = ["troupe", *sys.argv[2:]]
    main()
