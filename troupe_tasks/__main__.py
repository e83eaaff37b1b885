"""The program `troupe`: the same namespace as `invoke`, with words in the order people type them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any, NoReturn

_INTERRUPTED = 130


def main() -> None:
    """Run the command that sys.argv names and exit with its status."""
    sys.unraisablehook = _told_again
    try:
        from troupe_tasks.commands.frame import guarded

        flags = sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv
        guarded(_run, as_json="--json" in flags, debug="--debug" in flags)
    except KeyboardInterrupt:  # before anything could guard against it
        sys.stderr.write("troupe: interrupted\n  next: Run the same command again.\n")
        _leave_interrupted()
    except SystemExit as ended:
        if ended.code == _INTERRUPTED:
            _leave_interrupted()
        raise
    finally:
        # The command has ended: a Ctrl-C while Python closes down must not change how.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _told_again(lost: Any) -> None:
    # A Ctrl-C can fall where nothing can be raised (the callback of a weak reference): it is sent once more.
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.02)


def _leave_interrupted() -> NoReturn:
    # Ctrl-C inside an exec of text, as dataclasses and named tuples do it, makes Python end by SIGINT, handled or not.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(_INTERRUPTED)


def _run() -> None:
    from troupe_tasks import __version__
    from troupe_tasks.cli import normalise
    from troupe_tasks.namespace import namespace
    from troupe_tasks.program import Troupe

    program = Troupe(name="troupe", binary="troupe", version=__version__, namespace=namespace)
    program.run(["troupe", *normalise(sys.argv[1:], namespace)])


if __name__ == "__main__":
    main()
