"""The three ways in which keys are kept, and the file that says which one is an agent's, for life."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final

from troupe_tasks import durable
from troupe_tasks.errors import KeyRefused
from troupe_tasks.keystore import files
from troupe_tasks.text import line

NAME: Final = "tier"
MODE: Final = 0o600
_CAP_BYTES: Final = 64


class Tier(StrEnum):
    """How an agent's keys are kept, strongest first; the words are those of its record."""

    TPM = "tpm"
    HOST_KEY = "host-key"
    FILE = "file"

    @property
    def suffix(self) -> str:
        """Return how a key's file of this tier ends."""
        return ".key" if self is Tier.FILE else ".cred"

    @property
    def mode(self) -> int:
        """Return the mode of a key's file of this tier."""
        return 0o400 if self is Tier.FILE else 0o600


def read(folder: Path) -> Tier:
    """Return the tier of a key folder. No file means TPM, so that a file that was lost weakens nothing.

    Raises KeyRefused for a file that is not as `write` makes it.
    """
    try:
        data = files.read(folder / NAME, mode=MODE, cap_bytes=_CAP_BYTES)
    except FileNotFoundError:
        return Tier.TPM
    for tier in Tier:
        if data == _text(tier):
            return tier
    raise KeyRefused(
        f"{folder / NAME} names no key tier", cause=f"it says '{line(data, 40)}'",
        hint=f"It must be one of {', '.join(Tier)}: what it said when the agent was created.",
    )  # fmt: skip


def write(folder: Path, tier: Tier) -> None:
    """Write a key folder's tier, durably."""
    durable.write(folder / NAME, _text(tier), MODE)


def _text(tier: Tier) -> bytes:
    return f"{tier}\n".encode("ascii")
