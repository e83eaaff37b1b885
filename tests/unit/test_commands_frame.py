"""The frame of every command: how it is declared, and how it ends."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from invoke.context import Context

from troupe_tasks.cli import Rest
from troupe_tasks.commands.frame import command, guarded
from troupe_tasks.errors import NotFound, NotReady, SandboxFailed, TroupeError, UsageError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def raising(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


def ended(error: BaseException, *, as_json: bool = False) -> int:
    with pytest.raises(SystemExit) as caught:
        guarded(raising(error), as_json=as_json, debug=False)
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("x"), 2),
        (NotFound("x"), 3),
        (NotReady("x"), 4),
        (SandboxFailed("x"), 5),
        (KeyboardInterrupt(), 130),
        (TroupeError("x"), 1),
        (ValueError("x"), 1),
        (OSError(errno.ENOSPC, "No space left on device", "/f"), 4),
    ],
)
def test_the_status_tells_the_kind(
    error: BaseException, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(error) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("troupe: ")
    assert "  next: " in shown.err
    assert "Traceback" not in shown.err


def test_an_error_says_what_why_and_what_next_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    ended(UsageError("a\x1b[31mb", cause="why\x07", hint="do\u202ethis"))
    assert capsys.readouterr().err == "troupe: a\\x1b[31mb\n  cause: why\\x07\n  next: do\\u202ethis\n"


def test_with_json_the_error_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(NotFound("no x", cause="why"), as_json=True) == 3
    assert json.loads(capsys.readouterr().err) == {
        "error": "NotFound", "what": "no x", "cause": "why", "hint": NotFound.hint, "status": 3,
    }  # fmt: skip


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(ValueError, match="deep"):
        guarded(raising(ValueError("deep")), as_json=False, debug=True)


def test_a_command_is_declared_with_its_help() -> None:
    given: dict[str, Any] = {}

    @command(
        example="troupe say jane", flags={"agent": "The ID."}, positional=("agent",), rest=Rest("text", " ")
    )
    def say(_context: Any, agent: str, text: str = "", json: bool = False) -> None:
        """Say something."""
        debug = agent  # a local of that name is no flag
        given.update(agent=debug, text=text, json=json)

    assert {str(argument.name): argument.help for argument in say.get_arguments()} == {
        "agent": "The ID.", "text": None, "json": "Show the answer as JSON.",
    }  # fmt: skip
    assert say.__doc__ == "Say something.\n\nExample: troupe say jane"
    assert say.body.rest == Rest("text", " ")  # type: ignore[attr-defined]
    say(Context(), agent="jane", text="hi")
    assert given == {"agent": "jane", "text": "hi", "json": False}


def script(
    body: str, *, shell: str = "exec {}", env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    code = (
        f"from troupe_tasks.commands.frame import guarded\n{body}\nguarded(body, as_json=False, debug=False)"
    )
    line = shell.format('"$0" -c "$1"')
    return subprocess.Popen(
        ["bash", "-c", line, sys.executable, code], cwd=ROOT, env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_reader_that_goes_away_is_no_error() -> None:
    body = "def body():\n    for number in range(100_000): print(number)"
    with script(body, shell="{} | head -1; echo ${{PIPESTATUS[0]}}") as child:
        out, err = child.communicate(timeout=30)
    assert out == b"0\n141\n"
    assert err == b""


def test_a_full_stdout_is_a_full_disk() -> None:
    with script("def body(): print('x' * 100_000)", shell="exec {} > /dev/full") as child:
        _, err = child.communicate(timeout=30)
    assert child.returncode == 4
    assert b"disk is full" in err


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(closed: str) -> None:
    body = (
        "import os, sys\ndef body():\n    handle = os.open('/dev/null', os.O_RDONLY)\n    assert handle > 2\n"
        "    assert not sys.stdin.isatty()\n    print('o')\n    print('e', file=sys.stderr)"
    )
    with script(body, shell=f"exec {{}} {closed}") as child:
        out, err = child.communicate(timeout=30)
    assert child.returncode == 0
    assert out == (b"" if " >&-" in f" {closed}" else b"o\n")
    assert err == (b"" if "2>&-" in closed else b"e\n")


def test_a_plain_locale_shows_any_letter() -> None:
    env = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    with script("def body(): print('\\u00c9l')", env=env) as child:
        out, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (0, b"")
    assert out == b"\\xc9l\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_it_with_130(number: signal.Signals) -> None:
    body = "import signal\ndef body():\n    print('ready', flush=True)\n    signal.pause()"
    with script(body) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(number)
        _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert err.startswith(b"troupe: interrupted")
    assert b"Traceback" not in err


def test_an_error_on_the_way_out_of_a_ctrl_c_is_the_ctrl_c(capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> None:
        try:
            try:
                raise KeyboardInterrupt
            finally:
                raise OSError(9, "Bad file descriptor")
        except OSError as error:
            raise NotReady("cannot use a folder") from error

    with pytest.raises(SystemExit) as ended:
        guarded(body, as_json=False, debug=False)
    assert ended.value.code == 130
    assert "interrupted" in capsys.readouterr().err
