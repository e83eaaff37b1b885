"""The files and the words that systemd gets, with a stand-in manager; tests/guest proves the rest on a real one."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from troupe_tasks import process
from troupe_tasks.errors import NotReady, StateUnreadable
from troupe_tasks.paths import Paths
from troupe_tasks.process import Done
from troupe_tasks.services import choose, relay, units
from troupe_tasks.services.protocol import Phase, Service
from troupe_tasks.services.supervisor import Supervisor
from troupe_tasks.services.systemd import Systemd

NAME = "gateway-jane"


class Manager:
    """A stand-in for systemctl: it notes what it was told, and shows what the test says."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.facts: dict[str, dict[str, str]] = {}

    def run(self, argv: Sequence[str | Path], **more: Any) -> Done:
        words = [str(word) for word in argv if not str(word).startswith("--no-")]
        assert words.pop(0) == "systemctl"
        self.calls.append(words)
        shown = [{"Id": one, **self.facts.get(one, {})} for one in words if one.endswith(".service")]
        text = "\n\n".join("\n".join(f"{key}={value}" for key, value in block.items()) for block in shown)
        return Done(0, text.encode(), b"")

    def told(self, verb: str) -> list[list[str]]:
        return [words for words in self.calls if verb in words]


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(data=tmp_path / "data", config=tmp_path / "config", state=tmp_path / "state")


@pytest.fixture
def place(tmp_path: Path) -> units.Place:
    return units.Place((), tmp_path / "system", "multi-user.target", system=True)


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Manager:
    one = Manager()
    monkeypatch.setattr(process, "run", one.run)
    return one


@pytest.fixture
def keeper(paths: Paths, place: units.Place, manager: Manager) -> Systemd:
    return Systemd(paths, place=place)


def service(paths: Paths, name: str = NAME, **more: Any) -> Service:
    return Service(
        name=name, argv=("/bin/sh", "-c", "a $b %c"), log=paths.logs("jane") / "gateway.log", **more
    )


def unit(paths: Paths, place: units.Place, name: str = NAME) -> str:
    return units.files(name, paths, place).unit


def phase(keeper: Systemd, manager: Manager, name: str, **facts: str) -> Phase:
    manager.facts[name] = facts
    return keeper.states()[NAME].phase


def test_the_users_ordinary_home_has_plain_names(place: units.Place) -> None:
    ordinary = Paths.from_env({"HOME": os.path.expanduser(f"~{_me()}")})
    assert units.tag(ordinary) == ""
    assert unit(ordinary, place) == "hermes-gateway@jane.service"
    assert unit(ordinary, place, "broker") == "troupe-broker.service"


def _me() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name


def test_every_other_home_has_names_of_its_own(paths: Paths, tmp_path: Path, place: units.Place) -> None:
    other = Paths(data=tmp_path / "data", config=tmp_path / "config", state=tmp_path / "other")
    assert len({unit(paths, place), unit(other, place), "hermes-gateway@jane.service"}) == 3


def test_a_name_without_a_unit_is_refused(paths: Paths, place: units.Place) -> None:
    with pytest.raises(NotReady, match="no unit"):
        units.files("sshd", paths, place)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_a_quoted_word_is_one_line_and_reads_back(word: str) -> None:
    told = units.quoted(word)
    assert "\n" not in told
    inner = re.sub(r"\\x([0-9a-f]{2})|\\(.)", lambda m: chr(int(m[1], 16)) if m[1] else m[2], told[1:-1])
    assert inner.replace("%%", "%") == word
    assert "%" not in told.replace("%%", "")


def test_a_path_that_systemd_cannot_hold_is_refused(tmp_path: Path, place: units.Place) -> None:
    paths = Paths(data=tmp_path, config=tmp_path, state=tmp_path / "a\nExecStartPre=")
    with pytest.raises(NotReady, match="systemd can't be told"):
        units.drop_in(service(paths), paths, place)


def test_a_gateway_waits_for_the_unit_that_it_stands_on_where_one_manager_has_both(
    paths: Paths, place: units.Place
) -> None:
    standing = service(paths, stands_on=("sbx-daemon.service",))
    head = units.drop_in(standing, paths, place).partition("[Service]")[0].splitlines()
    assert {"Wants=sbx-daemon.service", "After=sbx-daemon.service"} <= set(head)
    assert "sbx-daemon" not in units.drop_in(service(paths), paths, place)
    own = units.Place(("--user",), place.folder, "default.target", system=False)
    assert "sbx-daemon" not in units.drop_in(standing, paths, own)


def test_the_drop_in_says_program_log_and_limit(paths: Paths, place: units.Place) -> None:
    rows = units.drop_in(service(paths, start_s=5, start_tries=3), paths, place).splitlines()
    assert 'ExecStart=:"/bin/sh" "-c" "a $b %%c"' in rows
    assert f"StandardOutput=append:{paths.logs('jane')}/gateway.log" in rows
    assert {"StartLimitBurst=4", "RestartSteps=3", "RestartMaxDelaySec=8", "TimeoutStopSec=70"} <= {*rows}
    # 1 + 2 + 4 s of pauses and four starts of at most 5 s are over before the interval is.
    (interval,) = [int(row.partition("=")[2]) for row in rows if row.startswith("StartLimitIntervalSec=")]
    assert interval > 7 + 4 * 5


def test_a_relayed_services_program_stands_behind_the_relay_which_passes_signals_on(
    paths: Paths, place: units.Place
) -> None:
    rows = units.drop_in(service(paths, relayed=True), paths, place).splitlines()
    (started,) = [row for row in rows if row.startswith("ExecStart=")]
    words = f'"-I" "-S" "{relay.__file__}" "alone" "/bin/sh" "-c" "a $b %%c"'
    assert started == f'ExecStart=:"{sys.executable}" {words}'


def test_only_the_system_managers_copy_has_what_only_it_can_give(paths: Paths, tmp_path: Path) -> None:
    for name in (NAME, "broker", "rehearsal"):
        for system in (True, False):
            at = units.Place((), tmp_path, "default.target", system=system)
            written = units.contents(service(paths, name), paths, at)
            text = b"".join(written.values()).decode()
            assert ("CapabilityBoundingSet=" in text) is system
            assert ("ReadWritePaths=" in text) is (system and name != NAME)


def test_the_broker_brings_the_timer_that_rotates_logs_and_takes_it_along(
    paths: Paths, place: units.Place, keeper: Systemd, manager: Manager
) -> None:
    keeper.add(service(paths, "broker"))
    mark = units.tag(paths)
    (told,) = place.folder.glob("troupe-broker*.service.d/troupe.conf")
    assert f"Wants=troupe-logs{mark}.timer" in told.read_text(encoding="utf-8").splitlines()
    assert {f"troupe-logs{mark}.timer", f"troupe-logs{mark}.service"} <= {
        path.name for path in place.folder.iterdir()
    }
    keeper.remove("broker")
    assert manager.told(f"troupe-logs{mark}.timer") == [["stop", f"troupe-logs{mark}.timer"]]
    assert [path for path in place.folder.rglob("*") if path.is_file()] == []


def test_add_installs_privately_tells_the_manager_once_and_is_done_again_for_nothing(
    paths: Paths, place: units.Place, keeper: Systemd, manager: Manager
) -> None:
    keeper.add(service(paths, env={"MARK": 'a"b$c'}))
    where = units.files(NAME, paths, place)
    assert 'MARK="a\\"b\\$c"' in where.env.read_text(encoding="utf-8").splitlines()
    assert where.env.stat().st_mode & 0o777 == 0o600
    assert where.drop_in.stat().st_mode & 0o777 == 0o644
    assert manager.calls == [["daemon-reload"]]
    keeper.add(service(paths, env={"MARK": 'a"b$c'}))
    assert manager.calls == [["daemon-reload"]]


def test_an_interrupted_add_is_done_again(
    paths: Paths, keeper: Systemd, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> Done:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(process, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            keeper.add(service(paths))
    assert keeper.states() == {}
    keeper.add(service(paths))
    assert manager.told("daemon-reload")


def test_a_unit_file_that_someone_changed_is_written_anew(
    paths: Paths, place: units.Place, keeper: Systemd, manager: Manager
) -> None:
    keeper.add(service(paths))
    base = units.files(NAME, paths, place).base
    wanted = base.read_bytes()
    base.write_bytes(b"[Service]\nUser=nobody\n")
    keeper.add(service(paths))
    assert base.read_bytes() == wanted
    assert len(manager.told("daemon-reload")) == 2


def test_start_enables_and_stop_disables(
    paths: Paths, place: units.Place, keeper: Systemd, manager: Manager
) -> None:
    keeper.add(service(paths))
    where = units.files(NAME, paths, place)
    keeper.start([NAME])
    assert where.link.resolve() == where.base
    assert manager.calls[-1] == ["start", where.unit]
    assert keeper.stop([NAME]) == ()
    assert not where.link.is_symlink()
    assert manager.told("stop") == [["stop", where.unit]]


def test_one_that_runs_is_left_alone(
    paths: Paths, place: units.Place, keeper: Systemd, manager: Manager
) -> None:
    keeper.add(service(paths))
    for facts in ({"ActiveState": "active"}, {"ActiveState": "activating", "SubState": "auto-restart"}):
        manager.facts[unit(paths, place)] = facts
        keeper.start([NAME])
    assert manager.told("start") == []


def test_states_asks_once_for_all(paths: Paths, keeper: Systemd, manager: Manager) -> None:
    assert keeper.states() == {}
    assert manager.calls == []
    for number in range(20):
        keeper.add(service(paths, f"gateway-{number}"))
    before = len(manager.calls)
    assert len(keeper.states()) == 20
    assert len(manager.calls) == before + 1


def test_phases_are_read_from_what_systemd_shows(
    paths: Paths, place: units.Place, keeper: Systemd, manager: Manager
) -> None:
    keeper.add(service(paths, start_s=5, final_exits=(78,)))
    one = unit(paths, place)
    ago = [str(int((time.monotonic() - seconds) * 1e6)) for seconds in (1, 60)]
    young, old = ({"ActiveState": "active", "ActiveEnterTimestampMonotonic": stamp} for stamp in ago)
    failed = {"ActiveState": "failed", "Result": "exit-code", "ExecMainCode": "1", "ExecMainStatus": "7"}
    ended = {"ActiveState": "failed", "ExecMainCode": "1", "ExecMainStatus": "78"}
    assert phase(keeper, manager, one, **young) is Phase.STARTING
    assert phase(keeper, manager, one, **old) is Phase.RUNNING
    assert keeper.states()[NAME].since == pytest.approx(time.time() - 60, abs=2)
    assert phase(keeper, manager, one, ActiveState="activating", SubState="auto-restart") is Phase.WAITING
    assert phase(keeper, manager, one, ActiveState="deactivating") is Phase.STOPPING
    assert phase(keeper, manager, one, **failed) is Phase.STOPPED  # not wanted: whatever systemd remembers
    manager.facts.clear()
    keeper.start([NAME])
    assert phase(keeper, manager, one, **failed) is Phase.FAILED
    assert "status 7" in keeper.states()[NAME].why
    assert phase(keeper, manager, one, **failed | {"ExecMainStatus": "139"}) is Phase.FAILED
    assert "signal 11" in keeper.states()[NAME].why
    assert phase(keeper, manager, one, **ended) is Phase.ENDED
    assert keeper.states()[NAME].exit == 78
    assert phase(keeper, manager, one, LoadState="not-found") is Phase.STOPPED


def test_a_kill_at_the_deadline_is_told(
    paths: Paths, place: units.Place, keeper: Systemd, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper.add(service(paths))
    one = unit(paths, place)
    manager.facts[one] = {"ActiveState": "active"}
    plain = manager.run

    def run(argv: Sequence[str | Path], **more: Any) -> Done:
        if "stop" in argv:
            manager.facts[one] = {"ActiveState": "failed", "Result": "timeout"}
        return plain(argv, **more)

    monkeypatch.setattr(process, "run", run)
    assert keeper.stop([NAME]) == (NAME,)
    assert manager.told("reset-failed") == [["reset-failed", one]]


def test_remove_keeps_the_template_while_another_agent_has_it(
    paths: Paths, place: units.Place, keeper: Systemd, manager: Manager
) -> None:
    keeper.add(service(paths))
    keeper.add(service(paths, "gateway-joe"))
    keeper.remove(NAME)
    assert units.files(NAME, paths, place).base.exists()
    assert [*keeper.states()] == ["gateway-joe"]
    keeper.remove("gateway-joe")
    keeper.remove("gateway-joe")
    assert [path for path in place.folder.rglob("*") if path.is_file()] == []


def test_shutdown_leaves_no_file(paths: Paths, place: units.Place, keeper: Systemd, manager: Manager) -> None:
    for name in (NAME, "broker", "rehearsal"):
        keeper.add(service(paths, name))
    keeper.start([NAME, "broker"])
    keeper.shutdown()
    keeper.shutdown()
    assert [path for path in place.folder.rglob("*") if not path.is_dir()] == []
    assert not (paths.state / "units").exists()
    assert keeper.states() == {}


def test_a_damaged_note_is_told(paths: Paths, keeper: Systemd) -> None:
    keeper.add(service(paths))
    note = paths.state / "units" / f"{NAME}.json"
    note.write_text("{", encoding="ascii")
    with pytest.raises(StateUnreadable, match=re.escape(str(note))):
        keeper.states()


def test_an_unknown_service_is_told(keeper: Systemd) -> None:
    with pytest.raises(NotReady, match="gateway-nobody"):
        keeper.start(["gateway-nobody"])


@pytest.fixture
def booted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_BOOTED", tmp_path)
    monkeypatch.setattr(choose, "lasting", lambda: True)


def test_without_systemd_it_is_supervisor(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "_BOOTED", tmp_path / "nothing")
    assert isinstance(choose.keeper(paths), Supervisor)


@pytest.mark.usefixtures("booted", "manager")
def test_with_systemd_it_is_systemd(paths: Paths) -> None:
    assert isinstance(choose.keeper(paths), Systemd)


@pytest.mark.usefixtures("booted", "manager")
def test_a_manager_that_ends_with_the_login_is_not_used(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "lasting", lambda: False)
    assert isinstance(choose.keeper(paths), Supervisor)


@pytest.mark.usefixtures("booted", "manager")
def test_a_supervisor_that_runs_is_kept(paths: Paths) -> None:
    import fcntl

    programs = paths.run / "supervisor" / "programs"
    programs.mkdir(parents=True)
    with (programs / "gateway-jane.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert isinstance(choose.keeper(paths), Supervisor)
    assert isinstance(choose.keeper(paths), Systemd)


@pytest.mark.usefixtures("booted")
def test_a_manager_that_does_not_answer_is_not_used(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object, **__: object) -> Done:
        return Done(1, b"", b"Failed to connect to bus")

    monkeypatch.setattr(process, "run", down)
    assert isinstance(choose.keeper(paths), Supervisor)
