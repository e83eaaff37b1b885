"""Choose the strongest way in which this machine can keep keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from troupe_tasks import process
from troupe_tasks.errors import ToolFailed, ToolMissing
from troupe_tasks.keystore.tiers import Tier

Runner = Callable[[Sequence[str]], process.Done]

_NEEDED: Final = 256  # the first whose credentials can be a user's
_ASKED_OTHERWISE: Final = 257  # the first that is asked for a TPM by systemd-analyze
_BOOTED: Final = "run/systemd/system"  # sd_booted(3)
_VERSION: Final = re.compile(rb"^systemd ([0-9]{1,5})\b")
_DEADLINE_S: Final = 10.0  # a busy machine is no reason for a weaker tier


@dataclass(frozen=True, slots=True)
class Choice:
    """A tier, and why it is the strongest here."""

    tier: Tier
    why: str


def _run(argv: Sequence[str]) -> process.Done:
    return process.run(argv, deadline_s=_DEADLINE_S, cap_bytes=65536, ok=None)


def strongest(run: Runner = _run, *, root: Path = Path("/")) -> Choice:
    """Return the strongest tier of this machine; whatever does not answer is not there."""
    version = version_of("systemd-creds", run=run)
    if version is None:
        return Choice(Tier.FILE, "no systemd-creds answers here")
    if version < _NEEDED:
        return Choice(Tier.FILE, f"systemd {version} is older than {_NEEDED}")
    if not (root / _BOOTED).is_dir():
        return Choice(Tier.FILE, "systemd is not the init here, and a user's keys are opened by its service")
    if has_tpm(version, run=run):
        return Choice(Tier.TPM, f"a TPM with full support, and systemd {version}")
    return Choice(Tier.HOST_KEY, f"systemd {version}, and no TPM with full support")


def has_tpm(version: int, *, run: Runner = _run) -> bool:
    """Return whether systemd of this version finds a TPM that firmware, kernel and libraries all support.

    systemd-analyze(1) and, on 256, systemd-creds(1): the status is 0 for full support alone, whatever is printed.
    """
    program = "systemd-analyze" if version >= _ASKED_OTHERWISE else "systemd-creds"
    try:
        return run([program, "has-tpm2"]).status == 0
    except (ToolMissing, ToolFailed):
        return False


def version_of(program: str, *, run: Runner = _run) -> int | None:
    """Return the version that one of systemd's programs is of, or None where it does not answer."""
    try:
        match = _VERSION.match(run([program, "--version"]).stdout)
    except (ToolMissing, ToolFailed):
        return None
    return int(match.group(1)) if match else None
