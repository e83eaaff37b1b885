"""Which tier a machine gets: by what it has, and never by what does not answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit import creds
from troupe_tasks.errors import ToolMissing, ToolTimeout
from troupe_tasks.keystore import choose
from troupe_tasks.keystore.tiers import Tier
from troupe_tasks.process import Done


@pytest.fixture
def booted(tmp_path: Path) -> Path:
    """Give the root of a machine whose init is systemd."""
    (tmp_path / "root/run/systemd/system").mkdir(parents=True)
    return tmp_path / "root"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> creds.Machine:
    """Give systemd's programs."""
    return creds.stand_in(tmp_path / "bin", monkeypatch)


@pytest.mark.parametrize(
    ("facts", "tier", "why"),
    [
        ({}, Tier.TPM, "TPM with full support, and systemd 257"),
        ({"version": 256}, Tier.TPM, "systemd 256"),
        ({"version": 259, "tpm": ""}, Tier.HOST_KEY, "systemd 259, and no TPM"),
        ({"version": 256, "tpm": ""}, Tier.HOST_KEY, "systemd 256, and no TPM"),
        ({"version": 255}, Tier.FILE, "systemd 255 is older than 256"),
        ({"version": 252, "tpm": ""}, Tier.FILE, "252 is older"),
    ],
)
def test_the_strongest_tier_is_chosen(
    booted: Path, machine: creds.Machine, facts: dict[str, object], tier: Tier, why: str
) -> None:
    machine.becomes(**facts)
    found = choose.strongest(root=booted)
    assert found.tier is tier
    assert why in found.why


@pytest.mark.usefixtures("machine")
def test_a_machine_without_systemd_gets_files(tmp_path: Path) -> None:
    found = choose.strongest(root=tmp_path)
    assert found.tier is Tier.FILE
    assert "not the init" in found.why


@pytest.mark.parametrize("error", [ToolMissing("none"), ToolTimeout("hangs")])
@pytest.mark.parametrize("asked", ["--version", "has-tpm2"])
def test_what_does_not_answer_is_not_there(booted: Path, error: Exception, asked: str) -> None:
    def run(argv: Sequence[str]) -> Done:
        if argv[1] == asked:
            raise error
        return Done(0, b"systemd 257 (257.13)\n", b"")

    assert choose.strongest(run, root=booted).tier is (Tier.FILE if asked == "--version" else Tier.HOST_KEY)


def test_a_program_that_hangs_ends_at_its_deadline(
    booted: Path, machine: creds.Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine.folder / "systemd-creds").write_text("#!/bin/sh\nsleep 60\n", encoding="ascii")
    monkeypatch.setattr(choose, "_DEADLINE_S", 0.2)
    assert choose.strongest(root=booted).tier is Tier.FILE
