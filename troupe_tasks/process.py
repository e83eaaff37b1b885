"""The one seam that starts programs.

Every program gets an argument list (no shell), a scrubbed environment, a closed stdin unless one is given,
a process group of its own that is killed whole at the deadline or on Ctrl-C, and a cap on what it may print.
Secrets travel by `stdin`, which takes a Secret as it is, or by `env` as text, for the one tool that wants it
there: an argument that is neither text nor a path is refused, and so is a variable that is not text, so that
neither a Secret nor a SecretStr gets there unseen.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from troupe_tasks.errors import ToolFailed, ToolMissing, ToolTimeout
from troupe_tasks.secret import Secret

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
Argument = str | Path
_ANY_STATUS = list(range(-64, 256))


@dataclass(frozen=True)
class Done:
    """How a program ended: its status (minus the signal's number if one ended it) and what it printed."""

    status: int
    stdout: bytes
    stderr: bytes
    truncated: bool = False


class _Capped:
    """A sink that keeps the first bytes and counts the rest; sh writes into it as into a file."""

    def __init__(self, cap_bytes: int) -> None:
        self._left = cap_bytes
        self._chunks: list[bytes] = []
        self.truncated = False

    def write(self, chunk: bytes) -> None:
        kept = chunk[: self._left]
        self._left -= len(kept)
        self._chunks.append(kept)
        self.truncated = self.truncated or len(kept) < len(chunk)

    def flush(self) -> None:
        """Exist, because sh flushes what it writes to."""

    def value(self) -> bytes:
        return b"".join(self._chunks)


def scrubbed(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment a program gets: where programs are, the home, a plain locale, and extra."""
    for name, value in (extra or {}).items():
        if not isinstance(value, str):
            raise TypeError(f"the variable {name} is a {type(value).__name__}, not text")
    base = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "HOME": os.environ.get("HOME", "/")}
    return {**base, **(extra or {})}


def words(argv: Sequence[Argument]) -> list[str]:
    """Return argv as plain text; refuse anything that is not text or a path (a secret, for example)."""
    plain: list[str] = []
    for argument in argv:
        if not isinstance(argument, str | Path):
            raise TypeError(f"argument {len(plain)} is a {type(argument).__name__}, not text or a path")
        plain.append(str(argument))
    return plain


def which(program: str, env: Mapping[str, str] | None = None) -> str:
    """Return a program's path, or raise ToolMissing."""
    import shutil

    found = shutil.which(program, path=scrubbed(env)["PATH"])
    if found is None:
        raise ToolMissing(f"the program {program} is not installed")
    return found


def run(
    argv: Sequence[Argument],
    *,
    deadline_s: float,
    stdin: bytes | Secret | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    cap_bytes: int = 1 << 20,
    ok: Container[int] | None = (0,),
    pass_fds: Collection[int] = (),
) -> Done:
    """Run a program to its end and return how it ended.

    cap_bytes bounds stdout and stderr each; what is over is dropped. With ok=None any status is fine.
    Raises ToolMissing, ToolFailed or ToolTimeout; the last two carry `.done`.
    """
    import sh

    program, *arguments = words(argv)
    given = stdin.reveal() if isinstance(stdin, Secret) else stdin or b""
    out, err = _Capped(cap_bytes), _Capped(cap_bytes)
    late = threading.Event()
    running: sh.RunningCommand | None = None

    def strike() -> None:
        late.set()
        if running is not None:
            _kill_group(running.pid)

    # sh's wait with a timeout polls, and returns before the last output is read; its plain wait does neither.
    clock = threading.Timer(deadline_s, strike)
    clock.daemon = True
    try:
        with _signals_held(), _inheritable(pass_fds) as passed:
            running = sh.Command(which(program, env))(
                *arguments,
                _in=given, _out=cast("IO[bytes]", out),
                _err=cast("IO[bytes]", err), _env=scrubbed(env), _cwd=str(cwd) if cwd else None,
                _tty_in=False, _tty_out=False, _new_session=True, _bg=True, _bg_exc=False, _return_cmd=True,
                _ok_code=_ANY_STATUS, _out_bufsize=65536, _err_bufsize=65536, _no_out=False, _no_err=False,
                _pass_fds=passed, _internal_bufsize=1,
            )  # fmt: skip
        clock.start()
        running.wait()
    except BaseException:
        if running is not None:
            _kill_group(running.pid)
        raise
    finally:
        clock.cancel()
    status, truncated = int(running.exit_code), out.truncated or err.truncated
    # What a program prints that ended well is what was asked of it: a seal may hold a short key's letters by chance.
    asked_for = status == 0 and not late.is_set()
    printed = out.value() if asked_for else _without(out.value(), stdin)
    done = Done(status, printed, _without(err.value(), stdin), truncated)
    if late.is_set():
        raise _told(ToolTimeout(f"{program} did not end within {deadline_s:g} s"), done)
    if ok is not None and done.status not in ok:
        raise _told(ToolFailed(f"{program} ended with status {done.status}", cause=_last_words(done)), done)
    return done


@contextmanager
def _signals_held() -> Iterator[None]:
    # Between its fork and our first wait nobody could end the program, so Ctrl-C waits that long.
    held: list[int] = []
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if callable(signal.getsignal(one)):
                before[one] = signal.signal(one, lambda got, _frame: held.append(got))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in held:
        signal.raise_signal(number)


@contextmanager
def _inheritable(handles: Collection[int]) -> Iterator[set[int]]:
    # sh keeps these open in the child, yet leaves on them Python's close-on-exec mark.
    changed = {handle for handle in handles if not os.get_inheritable(handle)}
    for handle in changed:
        os.set_inheritable(handle, True)
    try:
        yield {*handles}
    finally:
        for handle in changed:
            os.set_inheritable(handle, False)


def _without(said: bytes, stdin: bytes | Secret | None) -> bytes:
    """Return what a program printed, without the secret that it was given: one that fails may repeat its input."""
    if not isinstance(stdin, Secret):
        return said
    return said.replace(stdin.reveal(), b"(a secret)")


def _told(error: ToolFailed, done: Done) -> ToolFailed:
    error.done = done
    return error


def _last_words(done: Done) -> str:
    from troupe_tasks.text import line

    lines = (done.stderr or done.stdout).strip().splitlines()
    return line(lines[-1], 300) if lines else ""


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def spawn(
    argv: Sequence[Argument],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int | IO[Any] = subprocess.DEVNULL,
    stdout: int | IO[Any] = subprocess.DEVNULL,
    stderr: int | IO[Any] = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a program and return at once: a daemon, or the end of a bulk stream. The caller owns its end."""
    plain = words(argv)
    return subprocess.Popen(  # noqa: S603 - a list, no shell
        [which(plain[0], env), *plain[1:]],
        env=scrubbed(env), cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=tuple(pass_fds),
        start_new_session=True,
    )  # fmt: skip


def piped(
    argv: Sequence[Argument], *, env: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start a program with a pipe at each of its three ends, which the caller pumps."""
    pipe = subprocess.PIPE
    return spawn(argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=pass_fds)


def terminal(argv: Sequence[Argument], *, env: Mapping[str, str] | None = None) -> int:
    """Run a program that owns the operator's terminal (chat, an editor) and return its status."""
    plain = words(argv)
    term = {name: os.environ[name] for name in ("TERM", "COLORTERM") if name in os.environ}
    command = [which(plain[0], env), *plain[1:]]
    with subprocess.Popen(command, env=scrubbed({**term, **(env or {})})) as child:  # noqa: S603
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                continue  # the terminal sent it to the child as well, whose business it is


def become(argv: Sequence[Argument], *, env: Mapping[str, str] | None = None) -> NoReturn:
    """Replace this process by a program, so that nothing of ours stays in memory beside it."""
    plain = words(argv)
    os.execve(which(plain[0], env), plain, scrubbed(env))  # noqa: S606 - that is the point
