"""A machine with a TPM: keys are sealed, opened, and refused for what they are not."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from pathlib import Path

import pytest

from tests.tpm.inside import help as h
from troupe_tasks.doctor import systemd as doctor
from troupe_tasks.doctor.finding import Level
from troupe_tasks.doctor.machine import Machine
from troupe_tasks.keystore import choose
from troupe_tasks.paths import Paths
from troupe_tasks.services import systemd as services
from troupe_tasks.services.protocol import Service


def test_the_tpm_is_chosen() -> None:
    for who in h.BOTH:
        (told,) = h.asks(who, ("strongest",))
        assert told["tier"] == "tpm"
    found = doctor.key_tier(dataclasses.replace(Machine.here(Paths.from_env()), run=choose._run))
    print(found)
    assert found.verdict is Level.OK


def test_a_key_is_sealed_by_the_tpm_and_opened() -> None:
    for who in h.BOTH:
        put, read, check = h.asks(who, ("put", "jane", "tpm"), ("read", "jane"), ("check", "jane"))
        assert (put["fault"], put["form"], put["mode"]) == ("", "TPM", "0600")
        assert read["same"]
        assert check["ok"] == [True]
        sealed = (h.keys(who, "jane") / "openrouter.cred").read_bytes()
        assert h.KEY.encode() not in sealed


def test_the_longest_key_is_sealed_and_opened() -> None:
    put, read = h.asks(h.ROOT, ("put", "long", "tpm"), ("read", "long"), key="k" * 4096)
    assert put["fault"] == ""
    assert read["same"]


def test_root_gets_the_host_keys_seal_where_it_asks_for_it_and_others_the_services_own_choice() -> None:
    for who, form in ((h.ROOT, "HOST"), (h.OP, "TPM")):
        put, read = h.asks(who, ("put", "harry", "host-key"), ("read", "harry"))
        assert put["form"] == form
        assert read["same"]


def plant(who: str, agent: str, source: Path | bytes) -> None:
    """Give an agent of the TPM's tier a file that is not its own."""
    folder = h.keys(who, agent)
    folder.mkdir(mode=0o700)
    shutil.chown(folder, who, who)
    sealed = source if isinstance(source, bytes) else source.read_bytes()
    for name, data in (("tier", b"tpm\n"), ("openrouter.cred", sealed)):
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o600)
        shutil.chown(folder / name, who, who)


def test_what_is_not_this_users_key_for_this_service_is_told() -> None:
    mine = {who: h.keys(who, "jane") / "openrouter.cred" for who in h.BOTH}
    h.run(
        "sh", "-c", "printf other | systemd-creds --user --with-key=host+tpm2 --name=exa encrypt - /run/exa"
    )
    h.run(
        "sh", "-c", "printf key | systemd-creds --with-key=host+tpm2 --name=openrouter encrypt - /run/system"
    )
    h.run(
        "sh", "-c", "printf other | setpriv --reuid=op --regid=op --clear-groups "
        "systemd-creds --user --name=exa encrypt - - >/run/exa-op",
    )  # fmt: skip
    whole = mine[h.ROOT].read_bytes()
    for who, other, renamed in ((h.ROOT, h.OP, "/run/exa"), (h.OP, h.ROOT, "/run/exa-op")):
        spoilt: dict[str, tuple[Path | bytes, str]] = {
            "renamed": (Path(renamed), "wrong name"),
            "of-another": (mine[other], "damaged, or another's"),
            "damaged": (whole[:-9] + b"AAAAAAA=\n", "damaged, or another's"),
            "systems": (Path("/run/system"), "KeyRefused"),
            "cut": (whole[:20], "KeyRefused"),
            "plain": (b"sk-plain", "KeyRefused"),
            "weaker": (h.keys(h.ROOT, "harry") / "openrouter.cred", "KeyRefused"),
        }
        for agent, (source, _) in spoilt.items():
            plant(who, agent, source)
        assert dict(zip(spoilt, h.reads(who, *spoilt), strict=True)) == {
            agent: expected for agent, (_, expected) in spoilt.items()
        }


def test_the_broker_reads_keys_under_its_own_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_CALL_S", 180.0)  # emulated, a reload of the manager takes its time
    Path("/run/key").write_text(h.KEY, encoding="ascii")
    paths = Paths.from_env({"HOME": "/root"})
    log = paths.logs("broker") / "broker.log"
    keeper = services.Systemd(paths)
    argv = ("/usr/bin/python3", "-m", "tests.tpm.inside.as_user", "broker", "jane", "harry")
    env = {"PYTHONPATH": "/opt/troupe:/opt/lib", "HOME": "/root"}
    keeper.add(Service(name="broker", argv=argv, log=log, env=env, start_s=1, start_tries=2, stop_wait_s=5))
    try:
        keeper.start(["broker"])
        until = time.monotonic() + 180
        while not (said := log.read_bytes()).endswith(b"\n"):
            assert time.monotonic() < until, said
            time.sleep(0.2)
    finally:
        keeper.shutdown()
    assert json.loads(said) == 2 * [{"fault": "", "same": True}]


def test_a_service_that_is_stopped_is_told() -> None:
    h.run("systemctl", "stop", "systemd-creds.socket")
    try:
        assert h.reads(h.ROOT, "jane") == ["no credential service"]
        told = h.asks(h.OP, ("read", "jane"), ("put", "jane"))
        assert [one["fault"] for one in told] == 2 * ["no credential service"]
    finally:
        h.run("systemctl", "start", "systemd-creds.socket")
    assert h.reads(h.OP, "jane") == [""]
