"""The disk of a machine with a TPM, in a machine that has none."""

from __future__ import annotations

import dataclasses

from tests.tpm.inside import help as h
from troupe_tasks.doctor import systemd as doctor
from troupe_tasks.doctor.finding import Level
from troupe_tasks.doctor.machine import Machine
from troupe_tasks.keystore import choose
from troupe_tasks.paths import Paths


def test_the_host_key_is_chosen_and_doctor_says_what_that_means() -> None:
    for who in h.BOTH:
        (told,) = h.asks(who, ("strongest",))
        assert told["tier"] == "host-key"
    found = doctor.key_tier(dataclasses.replace(Machine.here(Paths.from_env()), run=choose._run))
    print(found)
    assert found.verdict is Level.NOTE
    assert "a copy of the disk can read them" in found.detail


def test_keys_of_the_tpm_do_not_open() -> None:
    assert h.reads(h.ROOT, "jane") == ["no TPM"]
    assert h.reads(h.OP, "jane", "harry") == ["no TPM", "no TPM"]


def test_keys_of_the_host_key_open() -> None:
    assert h.reads(h.ROOT, "harry") == [""]


def test_nothing_weaker_takes_the_place_of_a_key_of_the_tpm() -> None:
    for who, expected in ((h.ROOT, "no TPM"), (h.OP, "sealed weaker")):
        file = h.keys(who, "jane") / "openrouter.cred"
        before = file.read_bytes()
        (told,) = h.asks(who, ("put", "jane"))
        assert told["fault"] == expected
        assert file.read_bytes() == before
        assert [entry.name for entry in sorted(file.parent.iterdir())] == ["openrouter.cred", "tier"]


def test_a_new_agent_gets_the_host_keys_seal() -> None:
    for who in h.BOTH:
        put, read, check = h.asks(who, ("put", "mary", "host-key"), ("read", "mary"), ("check", "mary"))
        assert (put["fault"], put["form"], put["mode"]) == ("", "HOST", "0600")
        assert read["same"]
        assert check["ok"] == [True]
