"""The sandbox daemon's unit: what belongs in it, how it stands, what doctor and the installer make of that."""

from __future__ import annotations

import base64
import dataclasses
import os
import pwd
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from troupe_tasks import process
from troupe_tasks.doctor import docker
from troupe_tasks.doctor.finding import Level
from troupe_tasks.doctor.machine import Machine
from troupe_tasks.errors import DaemonFailed, NotReady, Refused, ToolTimeout
from troupe_tasks.host import processes
from troupe_tasks.operations import daemon as operation
from troupe_tasks.paths import Paths
from troupe_tasks.process import Done
from troupe_tasks.sandbox.sbx import calls, host
from troupe_tasks.sandbox.sbx.signin import SignIn, Standing
from troupe_tasks.services import daemon

SBX = Path("/opt/a place/sbx")


@dataclasses.dataclass
class Stage:
    """A machine's files, and what systemd and sbx say."""

    root: Path
    active: str = "active"
    enabled: str = "enabled"
    answers: str = "running"
    pid: int = 4242
    unread: str = "no"
    asked: list[str] = dataclasses.field(default_factory=list)

    def run(self, argv: Sequence[str]) -> Done:
        self.asked.append(" ".join(argv))
        if argv[0] == "systemctl":
            said = f"ActiveState={self.active}\nUnitFileState={self.enabled}\nResult=exit-code\n"
            more = f"StateChangeTimestamp=Mon 12:00 UTC\nMainPID={self.pid}\nNeedDaemonReload={self.unread}\n"
            return Done(0, f"{said}{more}".encode(), b"")
        assert argv == [str(SBX), "daemon", "status", "--json"]
        if self.answers == "hangs":
            raise ToolTimeout("it did not end")
        return Done(0, f'{{"status": "{self.answers}"}}'.encode(), b"")

    def place(self, user: str = "jo", *, text: str = "") -> None:
        for path, data in daemon.contents(SBX, user, text=lambda _: "").items():
            target = self.root / path.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text or data)

    def machine(self, **more: Any) -> Machine:
        facts = {
            "root": self.root, "user": "jo", "uid": 1000, "driver": "sbx", "sbx": lambda: str(SBX), "run": self.run,
            "signed_in": lambda: SignIn(Standing.IN, "jo"), "checkout": False,
        }  # fmt: skip
        return dataclasses.replace(Machine.here(Paths.from_env()), **{**facts, **more})


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    made = Stage(tmp_path / "root")
    (made.root / "run/systemd/system").mkdir(parents=True)
    return made


def test_the_drop_in_has_what_only_this_machine_has() -> None:
    env = {
        "XDG_STATE_HOME": '/srv/50% "x"',
        "XDG_DATA_HOME": "relative",
        "HTTPS_PROXY": "http://me:pass@proxy",
    }
    unit, drop_in = daemon.contents(SBX, "jo", text=lambda _: "", env=env).values()
    assert "User=jo" in drop_in.splitlines()
    assert 'Environment="SBX=/opt/a place/sbx"' in drop_in
    assert r'Environment="XDG_STATE_HOME=/srv/50%% \"x\""' in drop_in
    assert "relative" not in drop_in
    assert "pass" not in drop_in  # every user reads unit files
    assert "WantedBy=multi-user.target" in unit.splitlines()  # without it nothing can be enabled
    assert unit == (Path(__file__).parents[2] / "units" / "sbx-daemon.service").read_text()


def test_a_session_that_names_other_places_moves_nothing_of_the_unit_there_is(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", '/srv/50% "x"')
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    stage.place()
    for place in ("/elsewhere", ""):
        monkeypatch.setenv("XDG_STATE_HOME", place)
        monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
        _, drop_in = daemon.contents(SBX, "jo", text=stage.machine().text).values()
        assert r'Environment="XDG_STATE_HOME=/srv/50%% \"x\""' in drop_in
        assert "/elsewhere" not in drop_in
        assert "/cache" not in drop_in
        assert docker.daemon_unit(stage.machine()).verdict is Level.OK
        _, moved = daemon.contents(Path("/usr/bin/sbx"), "jo", text=stage.machine().text).values()
        assert moved != drop_in, "another program is another unit"
    stage.answers = "stopped"
    found = docker.daemon_unit(stage.machine())
    assert "folders that this session names" in found.detail
    assert "systemctl cat" in found.todo


@pytest.mark.parametrize(
    ("user", "text", "verdict", "detail", "todo"),
    [
        ("jo", "", Level.OK, "installed, current, and running", ""),
        ("al", "", Level.ACTION, "the daemon of al", "that user"),
        ("jo", "[Unit]", Level.ACTION, "not current", "installer again"),
    ],
)
def test_doctor_tells_how_its_files_are(
    stage: Stage, user: str, text: str, verdict: Level, *, detail: str, todo: str
) -> None:
    stage.place(user, text=text)
    found = docker.daemon_unit(stage.machine())
    assert found.verdict is verdict
    assert detail in found.detail
    assert todo in found.todo


def test_doctor_asks_for_sbx_first_and_notes_a_keyring(stage: Stage) -> None:
    assert docker.daemon_unit(stage.machine(sbx=lambda: None)).verdict is Level.ACTION
    found = docker.daemon_unit(stage.machine(signed_in=lambda: SignIn(Standing.KEYRING)))
    assert found.verdict is Level.NOTE
    assert "your keyring" in found.detail
    by_hand = docker.daemon_unit(stage.machine(checkout=True))
    assert "-m troupe_tasks.operations.daemon" in by_hand.todo


@pytest.mark.parametrize(
    ("active", "enabled", "answers", "detail", "todo"),
    [
        ("failed", "enabled", "stopped", "failed since Mon 12:00 UTC: exit-code", "sudo systemctl restart"),
        ("inactive", "enabled", "stopped", "not started", "installer again"),
        ("active", "disabled", "running", "not started with the machine", "installer again"),
        ("active", "enabled", "stopped", "does not answer", "sudo systemctl restart"),
        ("active", "enabled", "hangs", "does not answer", "sudo systemctl restart"),
        ("inactive", "enabled", "running", "a daemon runs outside it", "`sbx daemon stop`"),
        ("activating", "enabled", "running", "a daemon runs outside it", "`sbx daemon stop`"),
        ("activating 7", "enabled", "running", "is being started", "in a minute"),
        ("activating 7", "enabled", "stopped", "is being started", "in a minute"),
    ],
)
def test_doctor_tells_what_systemd_and_sbx_say(
    stage: Stage, active: str, enabled: str, answers: str, *, detail: str, todo: str
) -> None:
    stage.place()
    stage.active, _, pid = active.partition(" ")
    stage.enabled, stage.answers, stage.pid = enabled, answers, int(pid or 0)
    found = docker.daemon_unit(stage.machine())
    assert found.verdict is Level.ACTION
    assert detail in found.detail
    assert todo in found.todo


def test_without_systemd_doctor_only_notes_it(stage: Stage) -> None:
    (stage.root / "run/systemd/system").rmdir()
    assert docker.daemon_unit(stage.machine()).verdict is Level.NOTE


@pytest.fixture
def installing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """Let the operation find sbx, signed in, and record what it would do as root."""
    monkeypatch.setattr(calls, "find", lambda: SBX)
    monkeypatch.setattr(operation, "_run", stage.run)
    monkeypatch.setattr(host, "ensure_policy", lambda: stage.asked.append("policy"))
    name = base64.b64encode(b"docker/auth/hub/jo").decode()
    store = Path(os.environ["XDG_CONFIG_HOME"], "com.docker.sandboxes", name)
    store.mkdir(parents=True)
    (store / "metadata.json").write_text('{"a": "b"}')
    (store / "secret").write_text("sealed")
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)

    def as_root(argv: Sequence[str | Path], **_: object) -> int:
        words = [str(word) for word in argv]
        for source, target in zip(words[-5:-1:2], words[-4:-1:2], strict=True):
            place = stage.root / target.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(Path(source).read_text())
        stage.asked.append("root")
        stage.active, stage.enabled, stage.answers, stage.unread = "active", "enabled", "running", "no"
        return 0

    monkeypatch.setattr(process, "terminal", as_root)
    stage.active, stage.enabled, stage.answers = "inactive", "", "stopped"
    return stage


def settled(stage: Stage) -> list[str]:
    told: list[str] = []
    operation.settle(told.append, root=stage.root)
    return told


def test_a_missing_unit_is_put_in_place_by_one_visit_to_root(installing: Stage) -> None:
    (told,) = settled(installing)
    assert "takes root" in told
    assert installing.asked.count("root") == 1
    assert installing.asked[-1] == "policy"


def test_a_second_time_nobody_is_asked_for_root(installing: Stage) -> None:
    settled(installing)
    installing.asked.clear()
    assert settled(installing) == []
    assert "root" not in installing.asked
    assert installing.asked[-1] == "policy"


def test_a_changed_unit_leaves_the_running_daemon_alone(installing: Stage) -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    installing.place(me)
    (installing.root / "etc/systemd/system/sbx-daemon.service").write_text("[Unit]\n")
    installing.active, installing.enabled, installing.answers = "active", "enabled", "running"
    told = settled(installing)
    assert "sudo systemctl restart" in told[-1]
    assert installing.asked.count("root") == 1


def test_a_unit_that_systemd_has_not_read_is_put_in_place_again(installing: Stage) -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    installing.place(me)
    installing.active, installing.enabled, installing.answers = "active", "enabled", "running"
    installing.unread = "yes"
    assert "not current" in docker.daemon_unit(installing.machine(user=me)).detail
    settled(installing)
    assert installing.asked.count("root") == 1


def test_a_daemon_outside_the_unit_is_refused_and_nothing_done(installing: Stage) -> None:
    installing.answers = "running"
    with pytest.raises(Refused, match="outside its unit") as refused:
        settled(installing)
    assert "sbx daemon stop" in refused.value.hint
    assert not {"root", "policy"} & set(installing.asked)


@pytest.mark.parametrize("there", [False, True])
def test_where_sbx_does_not_say_whether_one_runs_the_machines_processes_do(
    installing: Stage, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    installing.answers = "hangs"
    monkeypatch.setattr(processes, "resident_mib", lambda *_words: 80 if there else 0)
    if not there:
        settled(installing)
        assert "root" in installing.asked
        return
    with pytest.raises(Refused, match="outside its unit"):
        settled(installing)
    assert not {"root", "policy"} & set(installing.asked)


def test_another_users_daemon_is_refused(installing: Stage) -> None:
    installing.place("somebody-else")
    with pytest.raises(Refused, match="runs for somebody-else") as refused:
        settled(installing)
    assert "--without-units" in refused.value.hint
    assert "root" not in installing.asked


def test_one_that_is_being_started_is_no_daemon_outside_the_unit(installing: Stage) -> None:
    installing.place(pwd.getpwuid(os.geteuid()).pw_name)
    installing.active, installing.enabled, installing.answers = "activating", "enabled", "running"
    assert settled(installing) == []
    assert "root" not in installing.asked


@pytest.mark.parametrize("what", ["offline", "hangs"])
def test_what_docker_runs_into_is_told_and_keeps_no_troupe_from_being_installed(
    installing: Stage, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline() -> None:
        raise NotReady("the session has expired \x1b", hint="`sbx login`")

    installing.place(pwd.getpwuid(os.geteuid()).pw_name)
    installing.active, installing.enabled, installing.answers = "active", "enabled", "running"
    if what == "offline":
        monkeypatch.setattr(host, "ensure_policy", offline)
    else:
        installing.answers = "hangs"
    (told,) = settled(installing)
    assert ("expired \\x1b. `sbx login`" if what == "offline" else "does not answer") in told
    assert not {"root", "policy"} & set(installing.asked)


def test_what_root_could_not_do_is_told(installing: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "terminal", lambda *_: 1)
    with pytest.raises(DaemonFailed, match="could not be put in place"):
        settled(installing)
    assert "policy" not in installing.asked


@pytest.mark.parametrize("what", ["no systemd", "no sbx", "signed out", "damaged", "keyring", "no sudo"])
def test_a_unit_that_can_not_be_is_left_out_with_the_reason(
    installing: Stage, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Path(os.environ["XDG_CONFIG_HOME"], "com.docker.sandboxes")
    reasons = {
        "no systemd": "systemd is not the init", "no sbx": "sbx is not installed", "signed out": "`sbx login`",
        "damaged": "damaged: `sbx login`", "keyring": "in your keyring", "no sudo": "install sudo",
    }  # fmt: skip
    match what:
        case "no systemd":
            (installing.root / "run/systemd/system").rmdir()
        case "no sbx":
            monkeypatch.setattr(calls, "find", lambda: None)
        case "signed out":
            store.rename(store.with_name("elsewhere"))
        case "damaged":
            next(store.glob("*/metadata.json")).write_text("null")
        case "keyring":
            store.rename(store.with_name("elsewhere"))
            monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere")
            services = Path(os.environ["XDG_DATA_HOME"], "dbus-1/services")
            services.mkdir(parents=True)
            (services / "org.freedesktop.secrets.service").touch()
        case _:
            monkeypatch.setattr(operation, "_as_root", lambda: None)
    (told,) = settled(installing)
    assert "left out" in told
    assert reasons[what] in told
    assert not {"root", "policy"} & set(installing.asked)
