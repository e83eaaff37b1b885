"""What every command has in common: how it is declared, how it ends, how its errors are shown."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, cast

from invoke.tasks import Task, task

from troupe_tasks.cli import Rest
from troupe_tasks.errors import DiskFull, Interrupted, TroupeError

Body = Callable[..., None]
_COMMON = {"json": "Show the answer as JSON.", "debug": "Show a traceback when something fails."}


def command(
    *,
    example: str,
    flags: Mapping[str, str],
    positional: Sequence[str] = (),
    rest: Rest | None = None,
    name: str | None = None,
    iterable: Sequence[str] = (),
) -> Callable[[Body], Task[Body]]:
    """Declare a command: its example, each flag's meaning, what has no flag, where more words go, what may repeat."""

    def declare(body: Body) -> Task[Body]:
        @functools.wraps(body)
        def run(context: Any, **given: Any) -> None:
            sys.dont_write_bytecode = False  # Invoke forbids it, and every command would compile us anew
            guarded(
                lambda: body(context, **given),
                as_json=bool(given.get("json")),
                debug=bool(given.get("debug")),
            )

        run.__doc__ = f"{(body.__doc__ or '').strip()}\n\nExample: {example}"
        run.rest = rest  # type: ignore[attr-defined]
        known = {key: text for key, text in _COMMON.items() if key in inspect.signature(body).parameters}
        declared: Any = task(
            run, positional=list(positional), help={**flags, **known}, auto_shortflags=False, name=name,
            iterable=list(iterable),
        )  # fmt: skip
        return cast("Task[Body]", declared)

    return declare


def guarded(body: Callable[[], None], *, as_json: bool, debug: bool) -> None:
    """Run body; show what it raises as a person can use it, and exit with the kind's status."""
    _settle_streams()
    signal.signal(signal.SIGTERM, _as_interrupt)
    signal.signal(signal.SIGHUP, _as_interrupt)
    try:
        body()
        sys.stdout.flush()
    except BrokenPipeError:
        _leave_quietly()
    except KeyboardInterrupt:
        _fail(Interrupted("interrupted"), as_json=as_json)
    except TroupeError as error:
        if debug:
            raise
        _fail(Interrupted("interrupted") if _began_as_interrupt(error) else error, as_json=as_json)
    except Exception as error:
        if debug:
            raise
        told = Interrupted("interrupted") if _began_as_interrupt(error) else _from_outside(error)
        _fail(told, as_json=as_json)


def _began_as_interrupt(error: BaseException | None) -> bool:
    """Tell whether an error came up while a Ctrl-C was on its way out: then that is what happened."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _from_outside(error: Exception) -> TroupeError:
    import errno

    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull("the disk is full", cause=str(error.filename or error.strerror))
    return TroupeError(f"an error of troupe's own: {type(error).__name__}", cause=str(error)[:300])


def _fail(error: TroupeError, *, as_json: bool) -> NoReturn:
    from troupe_tasks.text import escape

    if as_json:
        import json

        fields = {"error": type(error).__name__, "what": error.what, "cause": error.cause, "hint": error.hint}
        lines = json.dumps({**fields, "status": error.status})
    else:
        lines = f"troupe: {escape(error.what)}"
        lines += f"\n  cause: {escape(error.cause)}" if error.cause else ""
        lines += f"\n  next: {escape(error.hint)}"
    with contextlib.suppress(OSError):  # nobody may be left to read it; the status still tells
        print(lines, file=sys.stderr)
    sys.exit(error.status)


def _settle_streams() -> None:
    # A closed stdout or stderr must not turn the next opened file into one (`>&-`).
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            nothing = os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False)
            setattr(sys, name, nothing)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _leave_quietly() -> NoReturn:
    # The reader went away (`| head -1`): say nothing, and keep Python from failing on its last flush.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(128 + signal.SIGPIPE)


def _as_interrupt(number: int, _frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
