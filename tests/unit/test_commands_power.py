"""`troupe start` and `restart` over the budget: a person is asked, agent by agent, and a no leaves it as it is."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace
from typing import Any

import pytest
from invoke import Context

from troupe_tasks import budget
from troupe_tasks import record as records
from troupe_tasks.errors import OverBudget, SandboxGone
from troupe_tasks.namespace import namespace
from troupe_tasks.operations import power, room
from troupe_tasks.paths import Paths
from troupe_tasks.record import KitPin, Record, Sizes
from troupe_tasks.sandbox import drivers
from troupe_tasks.sandbox.protocol import Listing, SandboxInfo, State

AGENTS = ("jane", "john")
SIZES = Sizes(cpus=1, memory_mib=1024, storage_mib=1024)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Record two stopped agents on a machine that holds none of them, and yield what is done to them."""
    for agent in AGENTS:
        records.save(Paths.from_env(), Record(
            id=agent, name=agent, kit=KitPin(type="mime", version="1.2.3"), driver="capsule", isolation="gvisor",
            rehearsal=True, key_tier="none", sizes=SIZES, created_at="now", wanted="down",
        ))  # fmt: skip
    there = Listing(complete=True, sandboxes=tuple(
        SandboxInfo(name=one, id=one, identity="1", state=State.STOPPED, sizes=None, isolation=None, started_at=None)
        for one in AGENTS
    ))  # fmt: skip

    def used(_id: str, *, may_ask: bool) -> int:
        assert not may_ask, "a sandbox that hangs can't be restarted then"
        return 0

    driver = SimpleNamespace(name="capsule", list=lambda: there, disk_used_mib=used)
    monkeypatch.setattr(drivers, "open_driver", lambda *_, **__: driver)
    monkeypatch.setattr(
        room, "host", lambda *_: budget.Host(cpu_threads=2, memory_mib=3000, disk_free_mib=9000)
    )
    found: list[tuple[str, ...]] = []
    monkeypatch.setattr(power, "start", lambda _house, one, over_budget, **_: found.append((
        "start", one, "over" if over_budget else "",
    )))  # fmt: skip
    monkeypatch.setattr(power, "stop", lambda _house, one, **_: found.append(("stop", one)))
    return found


class Typing(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(name: str, monkeypatch: pytest.MonkeyPatch, *, typed: str | None = None, **flags: Any) -> str:
    """Run a command with somebody at the terminal who types, or with nobody; return what was said."""
    screen = Typing() if typed is not None else io.StringIO()
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr("sys.stdin", Typing(typed) if typed is not None else io.StringIO())
    try:
        namespace[name].body.__wrapped__(Context(), **flags)
    except OverBudget as error:
        return f"{screen.getvalue()}{error}"
    return screen.getvalue()


def test_a_person_is_asked_for_each(done: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    said = run("start", monkeypatch, typed="yes\nno\n", all=True)
    assert done == [("start", "jane", "over")]
    assert said.count("over by") >= 2
    assert "Start jane all the same?" in said
    assert "Start john all the same?" in said


def test_a_no_to_a_restart_stops_nothing(
    done: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("restart", monkeypatch, typed="no\n", agents="jane")
    assert done == []
    run("restart", monkeypatch, typed="yes\n", agents="jane")
    assert done == [("stop", "jane"), ("start", "jane", "over")]


def test_nobody_there_is_no_and_force_is_yes(
    done: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "over by" in run("start", monkeypatch, agents="jane")
    assert done == []
    assert "?" not in run("start", monkeypatch, agents="jane", force=True)
    assert done == [("start", "jane", "over")]


def test_with_json_the_answer_is_one_document_whatever_fails(
    done: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(power, "stop", lambda _house, one, **_: one == "jane")
    run("stop", monkeypatch, all=True, json=True)
    assert json.loads(capsys.readouterr().out) == [
        {"agent": "jane", "done": True, "cut": True}, {"agent": "john", "done": True, "cut": False},
    ]  # fmt: skip
    run("start", monkeypatch, all=True, json=True)
    over = json.loads(capsys.readouterr().out)
    assert [(one["agent"], one["done"]) for one in over] == [("jane", False), ("john", False)]
    assert "over by" in over[0]["why"]
    assert done == []


def test_of_several_each_failure_is_told_once_and_then_how_many_failed(
    done: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails_for_john(_house: object, one: str, **_more: object) -> bool:
        if one == "john":
            raise SandboxGone("john is gone")
        return False

    monkeypatch.setattr(power, "stop", fails_for_john)
    screen = io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    with pytest.raises(SystemExit) as ended:
        namespace["stop"].body(Context(), agents="jane,john")
    assert ended.value.code == SandboxGone.status
    said = screen.getvalue()
    assert said.count("john is gone") == 1
    assert "`troupe status john`" in said
    assert "troupe: 1 of 2 failed: john\n" in said


def test_nobody_is_asked_about_what_can_not_be_started(
    done: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = SimpleNamespace(name="capsule", list=lambda: Listing(complete=True, sandboxes=()))
    monkeypatch.setattr(drivers, "open_driver", lambda *_, **__: gone)
    with pytest.raises(SandboxGone, match="gone, or not whole"):
        run("start", monkeypatch, typed="yes\n", agents="jane")
    assert done == []
