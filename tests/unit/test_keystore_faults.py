"""Each way in which systemd fails is told apart, with what to do; and no weaker way is taken instead."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.unit import creds
from troupe_tasks import process
from troupe_tasks.errors import KeyFailed, KeyRefused
from troupe_tasks.keystore import faults, sealed
from troupe_tasks.keystore.faults import Fault
from troupe_tasks.keystore.form import Form
from troupe_tasks.keystore.store import Keystore
from troupe_tasks.keystore.tiers import Tier
from troupe_tasks.paths import Paths
from troupe_tasks.secret import Secret

OLD, NEW = Secret(b"sk-old-key-0123456789"), Secret(b"sk-new-key-9876543210")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait for a TPM that is made of a file."""
    monkeypatch.setattr(sealed, "_PAUSES_S", (0.01, 0.01))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> creds.Machine:
    """Give a machine with a TPM."""
    return creds.stand_in(tmp_path / "bin", monkeypatch)


def made(tier: Tier) -> Keystore:
    store = Keystore(Paths.from_env(), "jane")
    store.create(tier)
    store.put("openrouter", OLD)
    return store


def opening(error: str, number: int | None = None) -> dict[str, object]:
    return {"error": [error, {} if number is None else {"errno": number}]}


@pytest.mark.parametrize(
    ("facts", "fault", "said"),
    [
        ({"tpm": ""}, Fault.NO_TPM, "no TPM that systemd can use"),
        ({"tpm": "T2"}, Fault.TPM_CHANGED, "another one, was cleared"),
        ({"pcr": "P2"}, Fault.BOOT_CHANGED, "Secure Boot"),
        ({"host": ""}, Fault.HOST_KEY, "credential.secret, is gone"),
        ({"host": "H2"}, Fault.FOREIGN, "another machine's host key"),
        ({"user": 1002}, Fault.FOREIGN, "another user's"),
        ({"service": False}, Fault.NO_SERVICE, "does not answer"),
        (opening("io.systemd.Credentials.BadScope"), Fault.SCOPE, "for another user"),
        (opening("org.varlink.service.PermissionDenied"), Fault.DENIED, "does not let"),
        (opening("org.varlink.service.InvalidParameter"), Fault.FOREIGN, "damaged"),
        (opening("org.varlink.service.MethodNotFound"), Fault.TOO_OLD, "too old"),
        (opening("io.systemd.Credentials.KeyBelongsToOtherTPM"), Fault.TPM_CHANGED, "another one"),
        (opening("io.systemd.Credentials.UnexpectedPCRState"), Fault.BOOT_CHANGED, "Secure Boot"),
        (opening("io.systemd.Credentials.TPMInDictionaryLockout"), Fault.TPM_LOCKED, "locked itself"),
        (opening("io.systemd.System", errno.ENOLCK), Fault.TPM_LOCKED, "locked itself"),
        (opening("io.systemd.System", errno.EOPNOTSUPP), Fault.NO_TPM, "no TPM"),
        (opening("io.systemd.System", errno.EIO), Fault.UNKNOWN, "io.systemd.System"),
        (opening("io.systemd.System"), Fault.UNKNOWN, "io.systemd.System"),
        ({"says": "\x1b[31m never heard of"}, Fault.UNKNOWN, r"\\x1b\[31m never heard of"),
    ],
)
def test_a_key_that_does_not_open_says_why(
    machine: creds.Machine, facts: dict[str, object], fault: Fault, said: str
) -> None:
    store = made(Tier.TPM)
    machine.becomes(**facts)
    with pytest.raises(KeyFailed, match=said) as caught:
        store.read("openrouter")
    assert caught.value.fault == fault
    assert caught.value.hint
    (found,) = store.check()
    assert not found.ok
    assert found.why == str(caught.value)


def test_a_tpm_that_fails_for_a_moment_is_asked_again(
    machine: creds.Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = made(Tier.TPM)
    machine.becomes(**opening("io.systemd.System", errno.ENOTRECOVERABLE))
    pauses: list[float] = []

    def mend(pause_s: float) -> None:
        pauses.append(pause_s)
        machine.becomes()

    monkeypatch.setattr("troupe_tasks.keystore.sealed.time.sleep", mend)
    assert store.read("openrouter") == OLD
    assert len(pauses) == 1
    machine.becomes(tpm="T2")
    monkeypatch.setattr("troupe_tasks.keystore.sealed.time.sleep", pauses.append)
    with pytest.raises(KeyFailed, match="was cleared"):
        store.read("openrouter")
    assert len(pauses) == 3


def test_a_renamed_file_is_refused_by_the_name_in_its_seal(machine: creds.Machine) -> None:
    store = made(Tier.TPM)
    folder = Paths.from_env().keys("jane")
    (folder / "openrouter.cred").rename(folder / "exa.cred")
    with pytest.raises(KeyFailed, match="it was renamed") as caught:
        store.read("exa")
    assert caught.value.fault == Fault.NAME


@pytest.mark.parametrize(
    ("facts", "fault"),
    [
        ({"tpm": ""}, Fault.WEAKER),
        ({"tpm": "", "root": True}, Fault.NO_TPM),
        ({"service": False}, Fault.NO_SERVICE),
        ({"version": 255}, Fault.TOO_OLD),
        ({"host": "", "root": True}, Fault.UNKNOWN),
        ({"host": ""}, Fault.UNKNOWN),
        ({"says": "Failed to encrypt: org.varlink.service.PermissionDenied"}, Fault.DENIED),
    ],
)
def test_what_can_not_be_sealed_as_the_tier_says_is_not_stored(
    machine: creds.Machine, facts: dict[str, object], fault: Fault
) -> None:
    store = made(Tier.TPM)
    machine.becomes(**facts)
    with pytest.raises(KeyFailed) as caught:
        store.put("openrouter", NEW)
    assert caught.value.fault == fault
    machine.becomes()
    assert store.read("openrouter") == OLD
    assert [one.ok for one in store.check()] == [True]


def test_root_seals_with_the_key_that_it_asked_for(machine: creds.Machine) -> None:
    machine.becomes(root=True)
    store = made(Tier.HOST_KEY)
    machine.becomes(root=True, tpm="T2")
    assert store.read("openrouter") == OLD


@pytest.mark.parametrize("tier", [Tier.TPM, Tier.HOST_KEY])
def test_a_machine_that_lost_its_programs_says_so(
    machine: creds.Machine, monkeypatch: pytest.MonkeyPatch, tier: Tier
) -> None:
    store = made(tier)
    monkeypatch.setattr(process, "SYSTEM_PATH", "/nowhere")
    for call in (lambda: store.read("openrouter"), lambda: store.put("openrouter", NEW)):
        with pytest.raises(KeyFailed, match="missing, or too old") as caught:
            call()
        assert caught.value.fault == Fault.TOO_OLD


def test_a_service_that_hangs_is_given_up(machine: creds.Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    store = made(Tier.TPM)
    machine.becomes(sleeps=60)
    monkeypatch.setattr(sealed, "_DEADLINE_S", 0.3)
    with pytest.raises(KeyFailed, match="did not answer in time") as caught:
        store.read("openrouter")
    assert caught.value.fault == Fault.SILENT


@pytest.mark.parametrize(
    "answer", ["", "[]", "{}", '{"data": 5}', '{"data": "!"}', '{"data": "YQo="}', "\x00"]
)
def test_an_answer_that_is_none_is_no_key(machine: creds.Machine, answer: str) -> None:
    store = made(Tier.TPM)
    (machine.folder / "varlinkctl").write_text(f"#!/bin/sh\nprintf '%s' '{answer}'\n".replace("\x00", ""))
    with pytest.raises(KeyRefused, match="holds no key"):
        store.read("openrouter")


def test_a_seal_of_the_host_key_never_blames_the_tpm() -> None:
    said = b"Method call io.systemd.Credentials.Decrypt() failed: io.systemd.System\n"
    found = {
        faults.of_opening(said, number=number, form=Form.HOST, has_tpm=lambda: True)
        for number in (None, *range(1, 134))
    }
    assert found == {Fault.UNKNOWN, Fault.HOST_KEY}


@pytest.mark.parametrize("fault", sorted(set(Fault) - {Fault.UNKNOWN}))
def test_every_fault_has_a_cause_and_a_next_step_of_its_own(fault: Fault) -> None:
    error = faults.failed("it can't be opened", fault, said=b"words")
    others = [faults.failed("", other) for other in set(Fault) - {fault, Fault.UNKNOWN}]
    assert error.fault == fault
    assert error.cause not in {other.cause for other in others}
    assert error.hint
    assert "words" not in error.cause
