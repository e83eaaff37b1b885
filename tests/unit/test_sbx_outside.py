"""How the way out is held open: through ends, through a daemon that does not answer, and never by starting anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from troupe_tasks.sandbox.sbx import outside, tunnel
from troupe_tasks.sandbox.sbx.outside import Told

# Each program writes down that it was called, and takes the next of its answers; the last one holds for ever.
_PROGRAM = """\
import sys
place, answers = sys.argv[1], sys.argv[2:]
with open(place, "a+") as file:
    file.seek(0)
    at = len(file.read())
    file.write("x")
sys.stdout.write(answers[min(at, len(answers) - 1)])
"""
_HELD = f"import sys; sys.stdout.buffer.write({tunnel.HEAD.pack(tunnel.HELLO, 0, 0)!r})"


def row(status: str, identity: str = "id") -> str:
    return json.dumps({"sandboxes": [{"name": "mine", "id": identity, "status": status}]})


class Stage:
    """The programs, and how often each was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.unit = folder / "the.unit"

    def called(self, name: str) -> int:
        place = self.folder / name
        return len(place.read_text()) if place.exists() else 0

    def words(self, name: str, *answers: str) -> list[str]:
        return [sys.executable, "-I", "-S", "-c", _PROGRAM, str(self.folder / name), *answers]

    def told(self, *listings: str, statuses: tuple[str, ...] = ("",), status: int = 1) -> Told:
        held = f"{_HELD}; open({str(self.folder / 'exec')!r}, 'a').write('x'); sys.exit({status})"
        return Told(
            name="mine", identity="id", unit=str(self.unit), status=self.words("status", *statuses),
            listing=self.words("listing", *listings), exec=[sys.executable, "-I", "-S", "-c", held],
            broker=str(self.folder / "nobody"), lock=str(self.folder / "lock"), ready=self.write(),
        )  # fmt: skip

    def write(self) -> int:
        self.ready, write = os.pipe()
        return write


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(outside, "_PAUSE_S", 0.01)
    monkeypatch.setattr(outside, "_PATIENCE_S", 10.0)
    made = Stage(tmp_path)
    yield made
    os.close(made.ready)


def test_it_gives_up_when_none_of_a_few_lasts(stage: Stage) -> None:
    assert outside.hold(stage.told(row("running"))) == 1
    assert stage.called("exec") == 5
    assert os.read(stage.ready, 16) == b"ready\n"


def test_what_lasted_does_not_count_and_a_stopped_sandbox_is_not_started(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "_LONG_S", 0.0)
    assert outside.hold(stage.told(*[row("running")] * 8, row("stopped"))) == 0
    assert stage.called("exec") == 9


@pytest.mark.parametrize("other", [row("running", "another"), row("stopped"), row("error")])
def test_another_or_one_that_does_not_run_is_left(stage: Stage, other: str) -> None:
    assert outside.hold(stage.told(other)) == 0
    assert stage.called("exec") == 1


def test_one_that_says_that_it_is_not_ours_is_left_unasked(stage: Stage) -> None:
    assert outside.hold(stage.told(row("running"), status=125)) == 0
    assert (stage.called("exec"), stage.called("listing")) == (1, 0)


def test_a_listing_that_fails_or_forgets_is_asked_again(stage: Stage) -> None:
    ill = [
        "",
        "Starting...",
        "{",
        "[]",
        "{}",
        '{"sandboxes": null}',
        '{"sandboxes": []}',
        '{"sandboxes": [1]}',
    ]
    assert outside.hold(stage.told(*ill, row("running"), row("stopped"))) == 0
    assert (stage.called("exec"), stage.called("listing")) == (2, len(ill) + 2)


def test_one_that_stays_unknown_is_given_up_after_a_while(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "_PATIENCE_S", 0.3)
    assert outside.hold(stage.told("")) == 0
    assert stage.called("listing") > 1
    assert stage.called("exec") == 1


def test_under_a_unit_no_stopped_daemon_is_asked_for_a_listing(stage: Stage) -> None:
    stage.unit.touch()
    statuses = ("", '{"status": "stopped"}', '{"status": "stopped"}', '{"status": "running"}')
    assert outside.hold(stage.told(row("stopped"), statuses=statuses)) == 0
    assert (stage.called("status"), stage.called("listing")) == (4, 1)


@pytest.mark.parametrize(
    ("listing", "sent"), [(row("running"), 1), (row("stopped"), 0), (row("running", "another"), 0)]
)
def test_a_signal_is_sent_to_one_that_runs_alone(stage: Stage, listing: str, sent: int) -> None:
    told = stage.told(listing, status=0)
    assert (outside.send(told) == 0) is bool(sent)
    assert stage.called("exec") == sent
    os.close(told.ready)


def test_it_runs_by_its_path_with_nothing_but_the_tunnel(stage: Stage) -> None:
    told = stage.told(row("running"), status=7)
    given = {**told._asdict(), "exec": {"TERM": told.exec}}
    words = [sys.executable, "-I", "-S", outside.__file__, "send", json.dumps(given), "TERM"]
    assert subprocess.run(words, cwd="/", check=False, timeout=60).returncode == 7
    os.close(told.ready)
    loaded = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "importtime", outside.__file__], capture_output=True, cwd="/",
        text=True, check=False, timeout=60,
    ).stderr  # fmt: skip
    assert "troupe_tasks.sandbox.sbx.tunnel" in loaded
    for heavy in ("pydantic", "dataclasses", "pathlib", "troupe_tasks.errors"):
        assert f" {heavy}\n" not in loaded
