"""Output: answers on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import io
import json

import pytest
from pydantic import BaseModel

from troupe_tasks.commands import output


class Answer(BaseModel):
    name: str


class Typing(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_json_is_one_ascii_document(capsys: pytest.CaptureFixture[str]) -> None:
    for value in (Answer(name="É\x1b\u202e"), {"name": "É\x1b\u202e"}):
        output.show_json(value)
        shown = capsys.readouterr()
        assert shown.out.isascii()
        assert "\x1b" not in shown.out
        assert json.loads(shown.out) == {"name": "É\x1b\u202e"}
        assert shown.err == ""


@pytest.mark.parametrize("said", ["left out: [/x]", "[bold]loud", "[link=file:///etc/passwd]here[/link]"])
def test_what_is_being_done_is_no_markup(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    screen = Typing()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with output.progress() as shown:
        shown.step(said)
        shown.step(f"{said} again")
    assert said in screen.getvalue()


def test_progress_is_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress() as shown:
        shown.step("making")
        shown.step("starting")
    assert capsys.readouterr() == ("", "- making\n- starting\n")
    with output.progress(quiet=True) as shown:
        shown.step("making")
    assert capsys.readouterr() == ("", "")


def test_the_spinner_ends_with_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Typing()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal)
    with contextlib.suppress(KeyboardInterrupt), output.progress() as shown:
        shown.step("making")
        shown.step("starting")
        raise KeyboardInterrupt
    assert terminal.getvalue().rstrip().endswith("\x1b[2K")  # the line was cleared last


def test_a_note_is_escaped_and_beside_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    output.note("a\x1b[2Jb")
    assert capsys.readouterr() == ("", "a\\x1b[2Jb\n")


@pytest.mark.parametrize(
    ("answer", "yes"),
    [
        ("yes\n", True),
        (" Y \n", True),
        ("y", True),
        ("\n", False),
        ("", False),
        ("no\n", False),
        ("yess\n", False),
    ],
)
def test_only_yes_is_yes(monkeypatch: pytest.MonkeyPatch, answer: str, yes: bool) -> None:
    monkeypatch.setattr("sys.stdin", Typing(answer))
    monkeypatch.setattr("sys.stderr", asked := Typing())
    assert output.confirmed("Remove it?") is yes
    assert asked.getvalue() == "Remove it? [yes/no] "


def test_nobody_is_asked_where_nobody_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.StringIO("yes\n")
    monkeypatch.setattr("sys.stdin", stdin)
    assert not output.somebody_is_there()
    assert not output.confirmed("Remove it?")
    assert stdin.tell() == 0
