"""A key changes though the agent's sandbox is lost: nothing is left unfinished that would keep a restore out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from invoke import Context

from tests.registries import a_kit
from troupe_tasks import record as records
from troupe_tasks.journal import END, Journal
from troupe_tasks.keystore.store import Keystore
from troupe_tasks.keystore.tiers import Tier
from troupe_tasks.kits import local, pins
from troupe_tasks.namespace import namespace
from troupe_tasks.operations import outlets, secrets
from troupe_tasks.operations.house import House
from troupe_tasks.paths import Paths
from troupe_tasks.record import KitPin, Record, Sizes
from troupe_tasks.sandbox import drivers
from troupe_tasks.sandbox.protocol import Listing, Ran, SandboxInfo, State
from troupe_tasks.secret import Secret

ID = "jane"
KEY = "key-of-the-provider-0123456789"
SERVICE = {
    "name": "desk", "line": "Its key.", "required": False, "variable": "DESK_KEY", "hosts": ["desk.example.com"],
    "place": {"form": "bearer"}, "stand_in": "desk-{hex:32}",
}  # fmt: skip


Told = list[dict[str, str | None]]


class Runtime:
    """A runtime with the agent's sandbox in some state, and what was put into its .env."""

    name = "capsule"

    def __init__(self) -> None:
        self.state = State.MISSING
        self.put_in: Told = []

    def list(self) -> Listing:
        here = SandboxInfo(
            name=ID, id=ID, identity="1", state=self.state, sizes=None, isolation=None, started_at=None
        )
        return Listing(complete=True, sandboxes=(here,))

    def start(self, _sandbox: str) -> None:
        assert self.state is State.STOPPED, "there is nothing to start"

    def stop(self, _sandbox: str, *, deadline_s: float) -> None:
        assert deadline_s

    def run(self, _sandbox: str, _argv: Sequence[str], *, stdin: bytes = b"", **_given: Any) -> Ran:
        if stdin:
            self.put_in.append(json.loads(stdin))
        return Ran(status=0, stdout=b"", stderr=b"", truncated=False)


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    """Record a stopped agent whose kit has an optional service."""
    paths, found = Paths.from_env(), Runtime()
    folder = a_kit(tmp_path)
    (folder / "services.json").write_text(json.dumps({"services": [SERVICE]}), encoding="utf-8")
    pins.pin(local.read(folder, name="mime"), paths)
    records.save(paths, Record(
        id=ID, name="Jane", kit=KitPin(type="mime", version="1.2.3"), driver="capsule", isolation="gvisor",
        rehearsal=False, key_tier="file", sizes=Sizes(cpus=1, memory_mib=64, storage_mib=64), created_at="now",
        wanted="down",
    ))  # fmt: skip
    Keystore(paths, ID).create(Tier.FILE)
    monkeypatch.setattr(drivers, "open_driver", lambda *_, **__: found)
    monkeypatch.setattr(outlets, "ensure", lambda _house, rehearsal: None)  # noqa: ARG005 - there is no broker
    monkeypatch.setattr(House, "broker", SimpleNamespace(reload=lambda: None, forget=lambda _id: None))
    return found


def put() -> secrets.Changed:
    return secrets.put(House(Paths.from_env()), ID, "desk", Secret(KEY.encode()), told=lambda _: None)


def remove() -> secrets.Changed:
    return secrets.remove(House(Paths.from_env()), ID, "desk", told=lambda _: None)


@pytest.mark.parametrize("state", [State.MISSING, State.BROKEN])
def test_a_lost_sandbox_is_left_out_and_nothing_stays_unfinished(runtime: Runtime, state: State) -> None:
    paths, runtime.state = Paths.from_env(), state
    assert not put().put_in
    assert Journal(paths, ID).unfinished() is None
    assert Keystore(paths, ID).services() == ("desk",)
    assert records.load(paths, ID).services == ("desk",)
    assert not remove().put_in
    assert Journal(paths, ID).unfinished() is None
    assert Keystore(paths, ID).services() == ()
    assert runtime.put_in == []


def test_one_that_comes_back_is_brought_in_line_by_the_same_command(runtime: Runtime) -> None:
    assert not put().put_in
    runtime.state = State.STOPPED
    assert put().put_in
    assert [set(given) for given in runtime.put_in] == [{"DESK_KEY"}]
    assert str(runtime.put_in[0]["DESK_KEY"]).startswith("desk-")
    assert put().put_in
    assert len(runtime.put_in) == 1  # from then on the next request uses a changed key


def test_a_removed_one_too(runtime: Runtime) -> None:
    runtime.state = State.STOPPED
    put()
    runtime.state = State.MISSING
    assert not remove().put_in
    runtime.state = State.STOPPED
    assert remove().put_in
    assert runtime.put_in[-1] == {"DESK_KEY": None}


@pytest.mark.parametrize("moved", [True, False])
def test_what_a_move_has_brought_in_line_is_not_owed(runtime: Runtime, moved: bool) -> None:
    assert not put().put_in
    runtime.state = State.STOPPED
    book = Journal(Paths.from_env(), ID)
    book.open("restore", inputs={}, finish="troupe restore jane")
    book.write("restore", "settle", {})
    book.write("restore", "switch", {"moved": moved})
    book.write("restore", END, {})
    assert put().put_in
    assert len(runtime.put_in) == (0 if moved else 1)


def test_with_json_it_is_told_there(runtime: Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    runtime.state = State.BROKEN
    namespace["secret.remove"].body.__wrapped__(Context(), agent=ID, service="desk", json=True)
    put()
    namespace["secret.remove"].body.__wrapped__(Context(), agent=ID, service="desk", json=True)
    first, second = (
        json.loads(part) for part in capsys.readouterr().out.replace("}\n{", "}\n\n{").split("\n\n")
    )
    assert first == {"agent": ID, "service": "desk", "restarted": False, "put_in": True}
    assert second == first | {"put_in": False}


def test_the_person_is_told(runtime: Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    assert runtime.state is State.MISSING
    namespace["secret.remove"].body.__wrapped__(Context(), agent=ID, service="desk")
    assert not Keystore(Paths.from_env(), ID).services()
    put()
    namespace["secret.remove"].body.__wrapped__(Context(), agent=ID, service="desk")
    said = capsys.readouterr()
    assert "`troupe restore jane`" in said.err
    assert "is gone from this machine" in said.out
