"""The whole life of one real Hermes agent: made, talked to, hurt, stopped, started, deleted."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from tests.integration.house import House, wait_until
from tests.integration.terminal import Terminal
from troupe_tasks.text import escape

NAME, ID = "Mr. Life", "mr-life"
SAYS = "Rehearsal reply to"
PROMPT = "\N{HEAVY RIGHT-POINTING ANGLE QUOTATION MARK ORNAMENT}"

pytestmark = [pytest.mark.network, pytest.mark.real_home, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def alive(house: House) -> Iterator[House]:
    """Yield the house with one real Hermes agent in it, which is deleted without a trace at the end."""
    done = house.create(NAME, "hermes")
    assert "isolated by gvisor" in done.out or "isolated by namespaces" in done.out
    assert SAYS in done.out
    yield house
    house.delete(NAME)


@pytest.fixture
def running(alive: House) -> House:
    """Return the house once the agent is running."""
    wait_until(lambda: state(alive) == "running")
    return alive


def state(house: House) -> str:
    found = json.loads(house.troupe("list", "--json").out)
    return str(next(agent["state"] for agent in found if agent["id"] == ID))


def processes(house: House, *marks: str) -> list[int]:
    return [
        pid for pid, words in house.processes() if all(any(mark in word for word in words) for mark in marks)
    ]


def gateway(house: House) -> list[int]:
    return [pid for pid, words in house.processes() if words[0].endswith("/runsc") and "gateway" in words]


def test_list_and_status_tell_what_it_is(running: House) -> None:
    found = json.loads(running.troupe("status", ID, "--json").out)
    assert found["record"]["name"] == NAME
    assert found["agent"]["state"] == "running"
    assert found["self_test"]["passed"] is True
    assert found["gateway"].startswith("running since")
    assert ID in running.troupe("list").out


def test_a_message_by_argument_and_one_on_stdin_are_answered(running: House) -> None:
    by_argument = running.troupe("chat", ID, "the", "first", "word")
    assert by_argument.status == 0, by_argument
    assert f"{SAYS}: the first word" in by_argument.out
    on_stdin = running.troupe("chat", ID, input="the second word\n")
    assert on_stdin.status == 0, on_stdin
    assert f"{SAYS}: the second word" in on_stdin.out


def test_a_tool_runs_inside_as_the_agents_own_user_on_gvisors_kernel(running: House) -> None:
    call = '[[rehearse: tool terminal {"command": "id -u; uname -r; pwd"}]]'
    done = running.troupe("chat", ID, f"Look around.\n{call}")
    assert done.status == 0, done
    assert "1000" in done.out
    assert "/workspace" in done.out
    if json.loads(running.troupe("status", ID, "--json").out)["record"]["isolation"] == "gvisor":
        assert "4.4.0" in done.out


@pytest.mark.parametrize(
    "directive", ["401", *(pytest.param(one, marks=pytest.mark.chaos) for one in ("429", "500"))]
)
def test_a_failed_turn_ends_with_status_5_and_its_cause(running: House, directive: str) -> None:
    done = running.troupe("chat", ID, f"Fail.\n[[rehearse: {directive}]]")
    assert done.status == 5, done
    assert f"HTTP {directive}" in done.err
    assert "Traceback" not in done.err


def test_an_answer_that_is_cut_is_gone_on_with(running: House) -> None:
    done = running.troupe("chat", ID, "Break off.\n[[rehearse: cut]]")
    assert done.status == 0, done
    assert SAYS in done.out


def test_a_hostile_answer_reaches_the_terminal_only_escaped(running: House) -> None:
    done = running.troupe("chat", ID, "Attack.\n[[rehearse: hostile]]")
    assert done.status == 0, done
    assert escape(done.out) == done.out
    assert "\x1b" not in done.out + done.err


def test_a_person_talks_several_turns_and_resizes_the_window(running: House) -> None:
    with Terminal(running.argv("chat", ID), running.env()) as terminal:
        seen = terminal.wait_for(PROMPT, within_s=90)
        terminal.type("good morning\r")
        seen = terminal.wait_for(f"{SAYS}: good morning", within_s=60, after=seen)
        terminal.resize(20, 60)
        terminal.type("and good night\r")
        seen = terminal.wait_for(f"{SAYS}: and good night", within_s=60, after=seen)
        terminal.resize(40, 140)
        terminal.type("/exit\r")
        assert terminal.end(within_s=60) == 0


def test_it_stops_starts_and_restarts(running: House) -> None:
    stopped = running.troupe("stop", ID)
    assert stopped.status == 0, stopped
    assert state(running) == "stopped"
    refused = running.troupe("chat", ID, "anybody there?")
    assert refused.status == 3, refused
    assert f"troupe start {ID}" in refused.err
    assert running.troupe("start", "--all").status == 0
    assert running.troupe("restart", ID).status == 0
    wait_until(lambda: state(running) == "running")
    assert running.troupe("chat", ID, "back again").status == 0


def test_a_killed_gateway_comes_back_by_itself(running: House) -> None:
    before = gateway(running)
    assert len(before) >= 1
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: bool(gateway(running)) and not set(gateway(running)) & set(before))
    wait_until(lambda: state(running) == "running")


def test_a_killed_broker_comes_back_by_itself(running: House) -> None:
    (before,) = processes(running, "troupe_tasks.egress.broker")
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: processes(running, "troupe_tasks.egress.broker") not in ([], [before]))
    wait_until(lambda: running.troupe("chat", ID, "through again?").status == 0)


def supervisors(running: House) -> list[int]:
    return processes(running, str(running.code / "troupe_tasks/services/supervisord.py"))


def test_after_a_killed_supervisor_the_next_command_brings_all_back_once(running: House) -> None:
    (before,) = supervisors(running)
    os.kill(before, signal.SIGKILL)
    assert running.troupe("restart", ID).status == 0
    wait_until(lambda: state(running) == "running")
    assert len(supervisors(running)) == 1
    assert len(processes(running, "troupe_tasks.egress.broker")) == 1
    assert len(gateway(running)) == 1
    assert running.troupe("chat", ID, "all well?").status == 0


def test_a_killed_sandbox_is_started_again(running: House) -> None:
    for pid in processes(running, "runsc-sandbox", ID):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: state(running) == "running" and running.troupe("chat", ID, "alive?").status == 0)


def test_its_log_and_its_receipts_can_be_read(running: House) -> None:
    said = running.troupe("logs", ID)
    assert said.status == 0, said
    assert escape(said.out) == said.out
    as_kept = (running.paths.logs(ID) / "gateway.log").read_text(encoding="utf-8")
    assert escape(as_kept) == as_kept
    shown = running.troupe("receipts", ID)
    assert shown.status == 0, shown
    assert "self-test" in shown.out
    egress = running.troupe("logs", ID, "--egress")
    assert "model.rehearsal.internal" in egress.out, egress


def test_its_traffic_is_followed_until_ctrl_c(running: House) -> None:
    following = running.start("logs", ID, "--egress", "--follow")
    try:
        assert following.stdout is not None
        before = len(running.troupe("logs", ID, "--egress").out.splitlines())
        assert running.troupe("chat", ID, "followed?").status == 0
        # One line more than there was: the turn's own. The test's time limit ends a wait for ever.
        rows = [following.stdout.readline() for _ in range(before + 1)]
        assert json.loads(rows[-1])["host"] == "model.rehearsal.internal"
        following.send_signal(signal.SIGINT)
        _, err = following.communicate(timeout=30)
        assert following.returncode == 130
        assert "Traceback" not in err
    finally:
        following.kill()
        following.wait()


def test_a_machine_restart_is_survived_by_start_all(running: House) -> None:
    running.rooms.services.shutdown()
    running.rooms.driver().stop(ID, deadline_s=10)
    assert state(running) != "running"
    done = running.troupe("start", "--all")
    assert done.status == 0, done
    wait_until(lambda: state(running) == "running")
