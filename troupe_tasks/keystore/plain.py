"""The weakest tier: SERVICE.key, the key as it is, for its owner's eyes alone (0400)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from troupe_tasks import durable
from troupe_tasks.errors import KeyFailed, KeyRefused
from troupe_tasks.keystore import files
from troupe_tasks.keystore.tiers import Tier
from troupe_tasks.secret import LIMIT_BYTES, Secret, fault_of

_CAP_BYTES: Final = LIMIT_BYTES + 1


def write(path: Path, secret: Secret) -> None:
    """Replace a key's file, once the new one has been read back from the disk."""

    def prove(new: Path) -> None:
        with read(new) as found:
            if found != secret:
                raise KeyFailed(
                    f"{path} did not read back as it was written", cause="the disk or its filesystem"
                )

    durable.write(path, secret.reveal(), Tier.FILE.mode, prove=prove)


def read(path: Path) -> Secret:
    """Return a key. Raises FileNotFoundError, or KeyRefused for a file that is not as `write` makes it."""
    data = files.read(path, mode=Tier.FILE.mode, cap_bytes=_CAP_BYTES)
    if fault := fault_of(data):
        raise KeyRefused(f"{path} holds no key", cause=fault, hint="Set the key again.")
    return Secret(data)
