"""The same machine after a restart, and then with its boot state, its TPM, its host key and its ID changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.tpm.inside import help as h

SET_ASIDE = Path("/root/credential.secret")


def test_every_key_opens_after_a_restart() -> None:
    for who in h.BOTH:
        assert h.reads(who, "jane", "harry") == ["", ""]


def set_again(who: str) -> None:
    put, read = h.asks(who, ("put", "jane"), ("read", "jane"))
    assert put["fault"] == ""
    assert read["same"]


def test_another_secure_boot_state_is_told_and_ended_by_setting_the_key_again() -> None:
    h.run("tpm2_pcrextend", f"7:sha256={'0' * 63}1")
    assert h.reads(h.ROOT, "jane", "harry") == ["Secure Boot changed", ""]
    assert h.reads(h.OP, "jane") == ["Secure Boot changed"]
    for who in h.BOTH:
        set_again(who)


def test_a_cleared_tpm_is_told_and_ended_by_setting_the_key_again() -> None:
    h.run("tpm2_clear")
    assert h.reads(h.ROOT, "jane", "harry") == ["TPM changed", ""]
    # The service sealed harry's by the TPM, unasked.
    assert h.reads(h.OP, "jane", "harry") == ["TPM changed", "TPM changed"]
    for who in h.BOTH:
        set_again(who)


@contextmanager
def without_host_key() -> Iterator[None]:
    h.HOST_KEY.rename(SET_ASIDE)
    try:
        yield
    finally:
        SET_ASIDE.rename(h.HOST_KEY)


def test_a_host_key_that_is_gone_is_told() -> None:
    with without_host_key():
        assert h.reads(h.ROOT, "harry", "jane") == 2 * ["host key gone"]
        assert h.reads(h.OP, "jane") == ["host key gone"]


def test_another_host_key_is_told() -> None:
    with without_host_key():
        h.run("systemd-creds", "setup")
        assert h.reads(h.ROOT, "harry") == ["damaged, or another's"]
        assert h.reads(h.OP, "jane") == ["damaged, or another's"]
    assert h.reads(h.ROOT, "harry", "jane") == ["", ""]


def test_another_machine_id_ends_the_host_key_for_good() -> None:
    other = Path("/run/machine-id")
    other.write_text(f"{'0123456789abcdef' * 2}\n", encoding="ascii")
    h.run("mount", "--bind", str(other), "/etc/machine-id")
    assert h.HOST_KEY.exists()
    assert h.reads(h.ROOT, "harry") == ["host key gone"]
    assert not h.HOST_KEY.exists()  # systemd removed it, on being asked to read
    h.run("umount", "/etc/machine-id")
    assert h.reads(h.ROOT, "harry", "jane") == 2 * ["host key gone"]
