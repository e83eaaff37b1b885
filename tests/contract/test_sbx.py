"""What the sbx driver does when sbx, its daemon or somebody else misbehaves; the stand-in does so on demand."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.conftest import ONE, Docker
from tests.contract.docked import asks, docker_has, named, word
from tests.contract.standin_sbx import sbx as standin
from troupe_tasks import durable
from troupe_tasks.errors import (
    DaemonFailed,
    NotReady,
    Refused,
    SandboxFailed,
    SandboxGone,
    SandboxTimeout,
    TroupeError,
)  # fmt: skip
from troupe_tasks.host import kvm, kvm_probe
from troupe_tasks.sandbox.protocol import Isolation, State
from troupe_tasks.sandbox.sbx import answers, calls, driver, host, making, saved, template, walls
from troupe_tasks.secret import Secret


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no call wait longer than a second."""
    monkeypatch.setattr(calls, "ASK_S", 1.0)
    for name in ("_START_S", "_STOP_S", "_REAP_S"):
        monkeypatch.setattr(driver, name, 1.0)


def listed(dock: Docker) -> answers.Listed:
    found = making.listed(named(dock))
    assert found is not None
    return found


def test_an_exec_that_is_stuck_is_ended_at_its_deadline(
    dock: Docker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert word(dock) == b"kept\n"
    monkeypatch.setattr(driver, "_REAP_S", 1.0)
    with dock.ill(hang=["exec"]), pytest.raises(SandboxTimeout):
        dock.driver.run(ONE, ["true"], deadline_s=1)


def test_a_daemon_that_hangs_costs_a_deadline_and_is_said(dock: Docker, impatient: None) -> None:
    with dock.ill(hang=["ls"]):
        for ask in asks(dock)[1:]:
            began = time.monotonic()
            with pytest.raises(DaemonFailed, match="did not answer within 1 s") as told:
                ask()
            assert time.monotonic() - began < 10
            assert "sbx daemon restart" in told.value.hint
    assert dock.driver.list().find(ONE) is not None


def test_a_stop_that_hangs_ends_at_its_deadline(dock: Docker, impatient: None) -> None:
    with dock.ill(hang=["stop"]), pytest.raises(DaemonFailed, match="`sbx stop` did not answer"):
        dock.driver.stop(ONE, deadline_s=0.1)
    info = dock.driver.list().find(ONE)
    assert info is not None
    assert (info.state, info.takes_room) == (State.STOPPED, True)  # of no use, and the machine runs
    calls.do(["stop", named(dock)], deadline_s=60)
    info = dock.driver.list().find(ONE)
    assert info is not None
    assert not info.takes_room


def test_a_word_that_is_not_known_keeps_nobody_from_starting_it(dock: Docker) -> None:
    place = standin.Place(dock.standin)
    mine = place.find(named(dock))
    place.keep({**mine, "stuck": "hibernating"})
    try:
        info = dock.driver.list().find(ONE)
        assert info is not None
        assert info.state is State.STOPPED
        dock.driver.start(ONE)
        assert dock.driver.run(ONE, ["cat", "/state/word"], deadline_s=30).stdout == b"kept\n"
    finally:
        place.keep(mine)


def test_sbx_failing_in_the_middle_of_a_command_is_no_end_of_the_command(dock: Docker) -> None:
    assert word(dock) == b"kept\n"
    fails = ["sh", "-c", "echo 'ERROR: the sandbox has stopped' >&2; exit 1"]
    assert dock.driver.run(ONE, fails, deadline_s=30).status == 1
    place = standin.Place(dock.standin)
    mine = place.find(named(dock))
    place.keep({**mine, "stuck": "stopped"})
    try:
        with pytest.raises(SandboxFailed) as told:
            dock.driver.run(ONE, fails, deadline_s=30)
        assert "the sandbox has stopped" in told.value.cause
    finally:
        place.keep(mine)


def test_what_is_recorded_but_not_listed_is_missing_and_never_taken_for_removed(dock: Docker) -> None:
    before = docker_has(dock)
    with dock.ill(forget=True):
        info = dock.driver.list().find(ONE)
        assert info is not None
        assert info.state is State.MISSING
        for ask in asks(dock):
            with pytest.raises(SandboxGone, match="on record, but sbx does not list it"):
                ask()
        assert docker_has(dock) == before
        calls.do(["daemon", "restart"])
        assert word(dock) == b"kept\n"
    assert saved.load(dock.paths, ONE).identity is not None


def test_another_sandbox_under_the_name_is_left_alone(dock: Docker) -> None:
    place = standin.Place(dock.standin)
    mine = place.find(named(dock))
    place.keep({**mine, "id": "somebody-elses"})
    try:
        info = dock.driver.list().find(ONE)
        assert info is not None
        assert (info.state, info.identity) == (State.BROKEN, "somebody-elses")
        for ask in asks(dock):
            with pytest.raises(SandboxGone, match="is not the one on record"):
                ask()
        assert named(dock) in docker_has(dock)
    finally:
        place.keep(mine)
    assert word(dock) == b"kept\n"


@pytest.mark.parametrize(
    ("how", "error", "says", "hint"),
    [
        ({"signed_out": True}, NotReady, "not signed in", "sbx login"),
        ({"garbage": "all is well"}, DaemonFailed, "no answer that reads", "sbx daemon restart"),
        ({"garbage": '{"sandboxes": null}'}, DaemonFailed, "another form", "sbx version"),
        ({"garbage": "{}"}, DaemonFailed, "another form", "sbx version"),
        ({"no_ids": True}, DaemonFailed, "another form", "sbx version"),
        ({"says": {"ls": "database is at major version 6, this knows 1"}}, NotReady, "another release's", "sbx reset"),
        ({"says": {"ls": "something new \x1b[31m"}}, SandboxFailed, "`sbx ls` failed", "sbx diagnose"),
    ],
)  # fmt: skip
def test_a_listing_that_fails_is_no_empty_listing(
    dock: Docker, how: dict[str, object], error: type[TroupeError], says: str, hint: str
) -> None:
    with dock.ill(**how), pytest.raises(error, match=says) as told:
        dock.driver.list()
    assert hint in told.value.hint
    assert "\x1b" not in str(told.value)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("401 Unauthorized: docker session has expired", "not signed in"),
        ("your Docker session could not be refreshed due to a network issue", "can't renew its sign-in"),
    ],
)  # fmt: skip
def test_a_sign_in_that_ends_is_told_whichever_command_meets_it(dock: Docker, words: str, says: str) -> None:
    dock.driver.start(ONE)
    met: dict[str, list[Callable[[], object]]] = {
        "ls": [dock.driver.list, *asks(dock)],
        "exec": [lambda: dock.driver.run(ONE, ["true"], deadline_s=30), lambda: dock.driver.start(ONE)],
        "stop": [lambda: dock.driver.stop(ONE, deadline_s=0.1)],
        "template ls": [lambda: template.ensure(dock.paths, dock.image)],
        "policy ls": [host.ensure_policy],
        "settings get": [lambda: host.admit("registry.example.com")],
        "policy deny network": [lambda: walls.prove(listed(dock))],
        "policy check network": [lambda: walls.prove(listed(dock))],
        "inspect": [lambda: walls.prove(listed(dock))],
        "env create": [lambda: dock.driver.create(dock.spec("unmade"))],
        "rm": [lambda: dock.driver.remove("unmade")],
    }  # fmt: skip
    for command, all_that_ask in met.items():
        for ask in all_that_ask:
            with dock.ill(says={command: words}), pytest.raises(NotReady, match=says):
                ask()
    dock.driver.remove("unmade")
    assert word(dock) == b"kept\n"


def test_a_daemon_that_has_to_be_started_first_is_understood(dock: Docker) -> None:
    with dock.ill(daemon="stopped"):
        assert dock.driver.list().find(ONE) is not None


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"client": {"version": "v0.47.2"}, "server": {"state": "unavailable"}}, "0.48 or newer"),
        ({"client": {"version": "nightly"}}, "0.48 or newer"),
        ({"client": {"version": "v0.49.0"}, "server": {"state": "running", "version": "v0.48.0"}}, "its daemon is"),
    ],
)  # fmt: skip
def test_old_and_mixed_releases_are_not_ready(dock: Docker, found: dict[str, object], says: str) -> None:
    with dock.ill(version=found), pytest.raises(NotReady, match=says):
        calls.check()


def test_it_is_ready_with_kvm_the_right_release_and_a_sign_in(
    dock: Docker, monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    device = own_home / "kvm"
    monkeypatch.setattr(kvm_probe, "DEVICE", str(device))
    with pytest.raises(NotReady, match="you can't use"):
        dock.driver.isolation()
    device.touch()
    with pytest.raises(NotReady, match="not signed in"):
        dock.driver.isolation()
    account = own_home / ".config/com.docker.sandboxes" / base64.b64encode(b"docker/auth/hub/jo").decode()
    account.mkdir(parents=True)
    (account / "metadata.json").write_text("null")
    (account / "secretpass").write_text("sealed")
    with pytest.raises(NotReady, match="not signed in"):
        dock.driver.isolation()
    (account / "metadata.json").write_text('{"user": "jo"}')
    monkeypatch.setattr(kvm, "check", lambda: kvm.Kvm(kvm.KvmState.BROKEN, "no guest runs"))
    with pytest.raises(NotReady, match="it runs no guest here"):
        dock.driver.isolation()
    monkeypatch.setattr(kvm, "check", lambda: kvm.Kvm(kvm.KvmState.WORKS, "one ran"))
    assert dock.driver.isolation() is Isolation.KVM


def test_what_only_a_keyring_can_tell_sbx_is_asked(
    dock: Docker, monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    device, secrets = own_home / "kvm", own_home / "share/dbus-1/services/org.freedesktop.secrets.service"
    device.touch()
    secrets.parent.mkdir(parents=True)
    monkeypatch.setattr(kvm_probe, "DEVICE", str(device))
    monkeypatch.setattr(kvm, "check", lambda: kvm.Kvm(kvm.KvmState.WORKS, "one ran"))
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/x")
    monkeypatch.setenv("XDG_DATA_DIRS", str(own_home / "share"))
    with pytest.raises(NotReady, match="not signed in"):
        dock.driver.isolation()
    secrets.touch()
    with dock.ill(signed_out=True), pytest.raises(NotReady, match="not signed in") as told:
        dock.driver.isolation()
    assert "`sbx ls` failed" in str(told.value)
    with dock.ill(garbage="well"), pytest.raises(NotReady, match="no answer that reads"):
        dock.driver.isolation()
    assert dock.driver.isolation() is Isolation.KVM


def test_a_create_that_was_killed_half_way_goes_on_or_says_that_sbx_forgot(dock: Docker) -> None:
    spec = dock.spec("half")
    with dock.ill(die_half_made=True), pytest.raises(TroupeError):
        dock.driver.create(spec)
    assert named(dock, "half") in docker_has(dock)
    with dock.ill(forget=True), pytest.raises(DaemonFailed, match="but does not list it") as told:
        dock.driver.create(spec)
    assert "already exists" in told.value.cause
    with dock.ill(network_left=True), pytest.raises(DaemonFailed, match="still has a part"):
        dock.driver.create(spec)
    identity = dock.driver.create(spec)
    assert dock.driver.create(spec) == identity
    with dock.ill(half_removed=True), pytest.raises(DaemonFailed, match="still lists it"):
        dock.driver.remove("half")
    info = dock.driver.list().find("half")
    assert info is not None
    assert info.state is State.STOPPED  # sbx's word for it is not known, and only a start could tell
    dock.driver.remove("half")
    assert dock.driver.list().find("half") is None


def test_a_sandbox_whose_walls_are_not_proved_is_not_kept(dock: Docker) -> None:
    with dock.ill(policy_open=True), pytest.raises(SandboxFailed, match="network stays open"):
        dock.driver.create(dock.spec("open"))
    assert [name for name in docker_has(dock) if "open" in name] == []
    dock.driver.remove("open")
    # What went wrong is told, and not that the removing of it went wrong too.
    fails = {"rm": "500 Internal Server Error: no"}
    with dock.ill(policy_open=True, says=fails), pytest.raises(SandboxFailed, match="network stays open"):
        dock.driver.create(dock.spec("open"))
    dock.driver.remove("open")
    assert [name for name in docker_has(dock) if "open" in name] == []


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"policy_unheeded": True}, "stays open .*github.com"),
        ({"governed": True}, "an organization's policy"),
    ],
)
def test_a_denial_that_is_not_heeded_shows_where_the_policy_allows_something(
    dock: Docker, how: dict[str, object], says: str
) -> None:
    with dock.ill(**how), pytest.raises(SandboxFailed, match=says):
        walls.prove(listed(dock))


def test_a_folder_of_the_hosts_in_the_listing_is_refused(dock: Docker) -> None:
    one = listed(dock)
    walls.prove(one.model_copy(update={"workspaces": ["/workspace/of/the/image"]}))
    with pytest.raises(SandboxFailed, match=r"a folder of the host .*/usr"):
        walls.prove(one.model_copy(update={"workspaces": ["/usr"]}))


_MOUNT = {"host_path": "/home/me", "container_target": "/home/me", "read_only": False}


@pytest.mark.parametrize(
    ("has", "says"),
    [
        ({"mounts": [_MOUNT]}, "a part of the host .*/home/me"),
        ({"mounts": [{**_MOUNT, "read_only": True}]}, "a part of the host .*/home/me"),
        ({"mounts": ["/of/another/form"]}, "a part of the host .*/of/another/form"),
        ({"runtime_mounts": [{**_MOUNT, "read_only": True}]}, "a part of the host .*/home/me"),
        ({"mounts": [{**_MOUNT, "container_target": "/tmp"}]}, "a part of the host .*/home/me"),
        ({"mounts": [{"container_target": "/srv"}]}, "a part of the host .*/srv"),
        ({"mounts": {"host_path": "/home/me"}}, "a part of the host .*/home/me"),
        ({"mounts": [], "runtime_mounts": [_MOUNT]}, "a part of the host .*/home/me"),
        ({"ports": ["127.0.0.1:44624->8080/tcp"]}, "a port of the host .*44624"),
        ({"workspace": "/usr"}, "a folder of the host .*/usr"),
        ({"mcp_gateway": True}, "its MCP gateway, which leads past the broker"),
    ],
)  # fmt: skip
def test_what_of_the_host_sbx_gives_a_sandbox_is_refused(
    dock: Docker, has: dict[str, object], says: str
) -> None:
    with dock.ill(inspect=has), pytest.raises(SandboxFailed, match=says) as told:
        walls.prove(listed(dock))
    assert "settings list" in told.value.hint


@pytest.mark.parametrize("has", [{"mcp_gateway": None}, {"mcp_gateway": "no"}])
def test_an_inspection_that_does_not_tell_all_proves_nothing(dock: Docker, has: dict[str, object]) -> None:
    with dock.ill(inspect=has), pytest.raises(DaemonFailed, match="another form"):
        walls.prove(listed(dock))


@pytest.mark.parametrize(
    "has",
    [
        {}, {"mounts": [], "runtime_mounts": []}, {"mounts": None, "ports": None},
        {"mounts": [{"host_path": "", "container_target": "/tmp"}], "runtime_mounts": [{"container_target": "/tmp"}]},
    ],
)  # fmt: skip
def test_no_mount_may_be_told_in_any_way(dock: Docker, has: dict[str, object]) -> None:
    with dock.ill(inspect=has):
        walls.prove(listed(dock))


@pytest.mark.parametrize("how", [{"says": {"rm": "500 Internal Server Error: no"}}, {"hang": ["rm"]}])
def test_a_removal_that_failed_lets_no_empty_listing_be_believed(
    dock: Docker, how: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    dock.driver.create(dock.spec("stays"))
    monkeypatch.setattr(making, "_REMOVE_S", 1.0)
    with dock.ill(**how), pytest.raises(TroupeError, match="`sbx rm`"):
        dock.driver.remove("stays")
    with dock.ill(forget=True), pytest.raises(SandboxGone, match="does not list it"):
        dock.driver.remove("stays")
    assert saved.load(dock.paths, "stays").identity is not None
    monkeypatch.setattr(making, "_REMOVE_S", 60.0)
    dock.driver.remove("stays")
    assert not saved.place(dock.paths, "stays").exists()


def test_a_removal_that_was_killed_goes_on_once_sbx_says_that_it_has_none(dock: Docker) -> None:
    dock.driver.create(dock.spec("going"))
    kept = saved.load(dock.paths, "going")
    saved.keep(dock.paths, kept.model_copy(update={"removing": True}))
    calls.do(["rm", "-f", kept.name], deadline_s=60)
    with dock.ill(says={"rm": "500 Internal Server Error: no"}), pytest.raises(TroupeError, match="`sbx rm`"):
        dock.driver.remove("going")
    saved.keep(dock.paths, kept.model_copy(update={"removing": True}))
    dock.driver.remove("going")
    assert not saved.place(dock.paths, "going").exists()


def test_the_policy_is_balanced_when_there_is_none_and_a_persons_own_stays(dock: Docker) -> None:
    place = standin.Place(dock.standin)
    before = place.get("policy", {})
    place.put("policy", {})
    host.ensure_policy()
    assert place.get("policy", {})["default"] == "balanced"
    place.put("policy", {"default": "deny-all"})
    host.ensure_policy()
    assert place.get("policy", {})["default"] == "deny-all"
    place.put("policy", before)
    with dock.ill(signed_out=True), pytest.raises(NotReady, match="not signed in"):
        host.ensure_policy()


@pytest.mark.parametrize("how", [{}, {"settings_as_text": True}])
def test_a_registry_is_admitted_beside_every_entry_that_is_there(
    dock: Docker, how: dict[str, object]
) -> None:
    place = standin.Place(dock.standin)
    place.put("settings", {"kit.allowedSources": ["docker.io/", "ghcr.io/mine/"]})
    with dock.ill(**how):
        host.admit("registry.example.com/kits")
        host.admit("registry.example.com/kits")
    wanted = ["docker.io/", "ghcr.io/mine/", "registry.example.com/kits/"]
    assert place.get("settings", {})["kit.allowedSources"] == wanted
    place.put("settings", {"kit.allowedSources": ["*"]})
    host.admit("registry.example.com/kits")
    assert place.get("settings", {})["kit.allowedSources"] == ["*"]


@pytest.mark.parametrize("how", [{"settings_odd": "docker.io/"}, {"settings_stay": True}])
def test_a_setting_that_is_not_understood_or_not_kept_is_told(dock: Docker, how: dict[str, object]) -> None:
    standin.Place(dock.standin).put("settings", {"kit.allowedSources": ["docker.io/"]})
    with dock.ill(**how), pytest.raises(NotReady, match=r"kit.allowedSources|accepts kits from"):
        host.admit("registry.example.com")


TOKEN = b"a-token-0123456789"


def test_a_registrys_token_is_for_the_hosts_pulls_alone_and_goes_in_on_stdin(dock: Docker) -> None:
    place = standin.Place(dock.standin)
    for token in (b"an older one", TOKEN):
        host.hand_over("registry.example.com:5000", "jane", Secret(token))
    wanted = {"scope": "host-only", "type": "registry", "name": "registry.example.com:5000", "secret": "****"}
    assert place.get("secrets", []) == [wanted]
    assert (dock.standin / "password-host-only").read_bytes() == TOKEN
    assert TOKEN.decode() not in (dock.standin / "calls.log").read_text(encoding="utf-8")


def test_a_token_that_sbx_does_not_keep_is_told_and_not_shown(dock: Docker) -> None:
    with dock.ill(secrets_stay=True), pytest.raises(DaemonFailed, match="did not keep the token") as told:
        host.hand_over("other.example.com", "jane", Secret(TOKEN))
    assert TOKEN.decode() not in f"{told.value!r}{told.value.hint}"
    with dock.ill(says={"secret set": "no"}), pytest.raises(SandboxFailed, match="`sbx secret set`"):
        host.hand_over("other.example.com", "jane", Secret(TOKEN))


def test_too_little_is_refused_before_anything_is_made(dock: Docker) -> None:
    for less in ({"memory_mib": 256}, {"docker_mib": 0}):
        with pytest.raises(Refused, match="512 MiB"):
            dock.driver.create(dock.spec("tiny", sizes=dock.small.model_copy(update=less)))
        assert not saved.place(dock.paths, "tiny").exists()


def test_strangers_are_listed_as_such_in_one_call(dock: Docker) -> None:
    place = standin.Place(dock.standin)
    place.keep({"name": "other", "id": "x", "below": "other", "created_at": ""})
    try:
        before = len(dock.calls())
        listing = dock.driver.list()
        assert len(dock.calls()) == before + 1
    finally:
        (dock.standin / "sandboxes/other.json").unlink()
    assert [(info.name, info.sizes) for info in listing.sandboxes if info.id is None] == [("other", None)]


def test_sbx_is_given_no_ssh_agent_and_sends_no_telemetry(
    dock: Docker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/tmp/agent")
    monkeypatch.setenv("SECRET_OF_MINE", "x")
    dock.driver.list()
    last = json.loads((dock.standin / "calls.log").read_text(encoding="utf-8").splitlines()[-1])
    assert "SBX_NO_TELEMETRY" in last["env"]
    assert not {"SSH_AUTH_SOCK", "SECRET_OF_MINE"} & set(last["env"])


def test_an_image_is_loaded_once_with_the_agents_folders_as_its_own(dock: Docker, tmp_path: Path) -> None:
    image = tmp_path / "tiny-1.0.0" / "rootfs"
    for name in ("usr/bin", "state", "workspace"):
        (image / name).mkdir(parents=True)
    (image / "usr/bin/hello").write_text("hi")
    tag = template.ensure(dock.paths, image)
    before = len(dock.calls())
    assert template.ensure(dock.paths, image) == tag
    assert [words[:2] for words in dock.calls()[before:]] == [["template", "ls"]]
    root = Path(standin.Place(dock.standin).get("templates", {})[tag])
    assert (root / "usr/bin/hello").read_text() == "hi"
    assert (root / "usr/bin").stat().st_uid == 0
    assert (root / "state").stat().st_uid == (root / "workspace").stat().st_uid == 1000
    assert not (dock.paths.run / "template").exists()
    dock.driver.forget_image(image)
    assert tag not in standin.Place(dock.standin).get("templates", {})
    dock.driver.forget_image(image)


def test_the_files_of_a_sandbox_say_how_it_was_made(dock: Docker) -> None:
    folder = saved.place(dock.paths, ONE)
    made = json.loads(durable.read_private(folder / "sbxenv.yaml"))
    assert made["sandboxOptions"]["memory"] == "512m"
    assert "workspace" not in made
    mixin = json.loads(durable.read_private(folder / "mixin/spec.yaml"))
    assert (mixin["kind"], mixin["volumes"]) == ("mixin", [{"path": "/tmp", "type": "tmpfs"}])
    told = durable.read_private(folder / "storage.env")
    assert told == b"DOCKER_SANDBOXES_ROOT_SIZE=64m\nDOCKER_SANDBOXES_DOCKER_SIZE=512m\n"
