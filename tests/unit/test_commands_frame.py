"""The frame of every command: how it is declared, and how it ends."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from invoke.context import Context

from troupe_tasks.cli import Rest
from troupe_tasks.commands import frame
from troupe_tasks.commands.frame import Asked, command, filled, guarded
from troupe_tasks.errors import NotFound, NotReady, SandboxFailed, TroupeError, UsageError, tree
from troupe_tasks.namespace import namespace

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


def ended(error: BaseException, *, as_json: bool = False, debug: bool = False) -> int:
    with pytest.raises(SystemExit) as caught:
        guarded(raising(error), as_json=as_json, debug=debug)
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


@pytest.mark.parametrize("error", [ValueError("de\x1bep"), NotFound("de\x1bep")])
def test_debug_shows_the_traceback_escaped_and_then_what_is_told_without_it(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    status, told = ended(error, as_json=True), capsys.readouterr().err
    assert ended(error, as_json=True, debug=True) == status
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert "\x1b" not in shown
    assert shown.endswith(f"\n{told}")


HINTS = [cls.hint for _, cls in tree()] + ["For example: `troupe COMMAND mr-doyle`."]


@pytest.mark.parametrize("hint", HINTS)
@pytest.mark.parametrize(
    "asked", [Asked(), Asked("secret set"), Asked("chat", ("jane",)), Asked("start", ("jane", "john"))]
)
def test_what_a_hint_names_can_be_run(hint: str, asked: Asked) -> None:
    shown = filled(hint, asked)
    assert not re.search(r"`[^`]*\b(COMMAND|ID)\b[^`]*`", shown), shown
    assert shown.count("`") % 2 == 0


def test_a_hint_names_the_command_and_the_agent(capsys: pytest.CaptureFixture[str]) -> None:
    assert filled(UsageError.hint, Asked("secret set")) == "See `troupe secret set --help`."
    assert filled(UsageError.hint, Asked()) == "See `troupe --help`."
    assert filled("`troupe start ID` does; an ID is short", Asked("x", ("jane",))) == (
        "`troupe start jane` does; an ID is short"
    )
    with pytest.raises(SystemExit):
        guarded(raising(SandboxFailed("x")), as_json=True, debug=False, asked=Asked("chat", ("jane",)))
    assert "`troupe restart jane`" in json.loads(capsys.readouterr().err)["hint"]


def test_no_hint_names_a_command_without_the_agent_that_it_needs() -> None:
    bare = re.compile(r"`troupe (chat|start|stop|restart|status|logs|policy|reset|resize|upgrade|restore)`")
    found = [
        f"{path.name}:{node.value.lineno}"
        for path in (ROOT / "troupe_tasks").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.keyword) and node.arg == "hint" and bare.search(ast.unparse(node.value))
    ]
    assert not found


def test_every_command_knows_how_it_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Asked] = []
    monkeypatch.setattr(frame, "guarded", lambda _body, *, asked, **_: told.append(asked))
    for name in namespace.task_names:
        namespace[name].body(Context(), agent="jane")
        group, _, own = name.partition(".")
        short = own and namespace.collections[group].default == own
        assert told.pop() == Asked(group if short or not own else f"{group} {own}", ("jane",)), name


@pytest.mark.parametrize(
    ("given", "agents"),
    [
        ({"agent": "jane"}, ("jane",)),
        ({"agents": "jane,john"}, ("jane", "john")),
        ({"kind": "hermes", "name": "Mr. Doyle"}, ("mr-doyle",)),
        ({"kind": "hermes", "name": ""}, ()),
        ({"agent": "../x"}, ()),
        ({"kit": "hermes"}, ()),
        ({}, ()),
    ],
)
def test_a_commands_words_tell_its_agents(given: dict[str, str], agents: tuple[str, ...]) -> None:
    assert frame._agents(given) == agents


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
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_it_was_started_to_ignore_stays_ignored(number: signal.Signals) -> None:
    body = (
        "import sys\ndef body():\n    print('ready', flush=True)\n    sys.stdin.readline()\n    print('done')"
    )
    with script(body, shell=f"trap '' {number.name}; exec {{}}") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(number)
        out, err = child.communicate(b"\n", timeout=30)
    assert (child.returncode, out, err) == (0, b"done\n", b"")


LOST = {
    "closed": "exec {} 2>&-",
    "full": "exec {} 2>/dev/full",
    "unread": "exec {} 2> >(exec true)",  # its reader is soon gone
}


TELLS = (
    "import sys\nfrom troupe_tasks.commands import output\ndef body():\n"
    "    sys.stdin.readline()\n    with output.progress() as shown:\n"
    "        for number in range(300):\n            shown.step(f'doing {number}')\n"
    "            output.note(f'noting {number}')\n    print('done')"
)


@pytest.mark.parametrize("how", LOST)
def test_what_nobody_can_be_told_interrupts_nothing(how: str) -> None:
    with script(TELLS, shell=LOST[how]) as child:
        out, err = child.communicate(b"\n", timeout=60)
    assert (child.returncode, out, err) == (0, b"done\n", b"")


def test_a_terminal_that_goes_away_interrupts_nothing() -> None:
    master, slave = os.openpty()
    with script(TELLS, shell=f"exec {{}} 2>/proc/{os.getpid()}/fd/{slave}", env={"TERM": "xterm"}) as child:
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        shown = b""
        while b"doing" not in shown:
            shown += os.read(master, 4096)
        os.close(slave)
        os.close(master)
        out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (0, b"done\n", b"")


def test_an_answer_that_can_not_be_written_still_fails() -> None:
    body = (
        "from troupe_tasks.commands import output\ndef body():\n    output.note('noted')\n    print('done')"
    )
    with script(body, shell="exec {} >/dev/full") as child:
        _out, err = child.communicate(timeout=30)
    assert child.returncode == 4
    assert err.startswith(b"noted\n")


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
