"""What every command has in common: how it is declared, how it ends, how its errors are shown."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from invoke.tasks import Task, task

from troupe_tasks.cli import Rest
from troupe_tasks.errors import DiskFull, Interrupted, TroupeError

Body = Callable[..., None]
_QUOTED = re.compile(r"`[^`]*`")
_COMMON = {"json": "Show the answer as JSON.", "debug": "Show a traceback when something fails."}


@dataclass(frozen=True)
class Asked:
    """What a person asked for: the command as it is typed, and the agents that it works on."""

    command: str = ""
    agents: tuple[str, ...] = ()
    everyone: bool = False


_UNKNOWN = Asked()


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
        typed = _typed(name or body.__name__, example)

        @functools.wraps(body)
        def run(context: Any, **given: Any) -> None:
            sys.dont_write_bytecode = False  # Invoke forbids it, and every command would compile us anew
            guarded(
                lambda: body(context, **given),
                as_json=bool(given.get("json")),
                debug=bool(given.get("debug")),
                asked=Asked(typed, _agents(given), everyone=bool(given.get("all"))),
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


def _typed(name: str, example: str) -> str:
    """Return a command as it is typed: with its group, and by its group alone where that means it."""
    first, second, *_ = [*example.split()[1:], ""]
    return f"{first} {second}" if second == name else first


def _agents(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the IDs that a command's words name; words that are none are told by the command itself."""
    from troupe_tasks.errors import UsageError
    from troupe_tasks.names import agent_id, checked_id

    with contextlib.suppress(UsageError):
        if "kind" in given:
            return (agent_id(given["name"]),)
        words = given.get("agent") or given.get("agents") or ""
        return tuple(checked_id(word) for word in words.split(",") if word)
    return ()


def guarded(body: Callable[[], None], *, as_json: bool, debug: bool, asked: Asked = _UNKNOWN) -> None:
    """Run body; show what it raises as a person can use it, and exit with the kind's status."""
    _settle_streams()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
            signal.signal(number, _as_interrupt)
    try:
        try:
            body()
        except (
            SystemExit
        ):  # of a help, or of a command that failed; Python's own flush comes too late to be guarded
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except BrokenPipeError:
        _leave_quietly()
    except KeyboardInterrupt:
        _fail(_interrupted(asked), asked, as_json=as_json)
    except Exception as error:  # noqa: BLE001 - nothing is above it that could tell a person
        if debug:
            _show_traceback()
        if _began_as_interrupt(error):
            error = _interrupted(asked)
        _fail(error if isinstance(error, TroupeError) else _from_outside(error), asked, as_json=as_json)


def _interrupted(asked: Asked) -> TroupeError:
    if not asked.agents and not asked.everyone:
        return Interrupted("interrupted")
    from troupe_tasks.commands.agent import interrupted

    with contextlib.suppress(TroupeError, OSError):  # no folder to look in: then nothing was begun in it
        return interrupted(asked.agents, everyone=asked.everyone)
    return Interrupted("interrupted")


def _show_traceback() -> None:
    import traceback

    from troupe_tasks.text import escape

    with contextlib.suppress(OSError):
        print(escape(traceback.format_exc()), end="", file=sys.stderr)


def filled(hint: str, asked: Asked) -> str:
    """Put the command and the agent into a hint that leaves a place for them, so that what it names can be run."""
    only = asked.agents[0] if len(asked.agents) == 1 else ""
    quoted = " ".join(_QUOTED.findall(hint))
    if re.search(r"\bID\b", quoted) and not only:
        return "`troupe list` shows how each agent stands."
    known = {"COMMAND ": f"{asked.command} " if asked.command else "", "ID": only}
    return _QUOTED.sub(lambda found: re.sub(r"\bCOMMAND |\bID\b", lambda one: known[one[0]], found[0]), hint)


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


def _fail(error: TroupeError, asked: Asked, *, as_json: bool) -> NoReturn:
    from troupe_tasks.text import escape

    hint = filled(error.hint, asked)
    if as_json:
        import json

        fields = {"error": type(error).__name__, "what": error.what, "cause": error.cause, "hint": hint}
        lines = json.dumps({**fields, "status": error.status})
    else:
        lines = f"troupe: {escape(error.what)}"
        lines += f"\n  cause: {escape(error.cause)}" if error.cause else ""
        lines += f"\n  next: {escape(hint)}"
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
