"""An agent's keys: a folder of its own, one file a service, and the tier that all of them are kept by.

Who writes holds the agent's lock; anybody of the same user may read meanwhile, from any thread.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from troupe_tasks import durable
from troupe_tasks.errors import KeyMissing, KeyRefused, StateUnreadable, TroupeError, UsageError
from troupe_tasks.keystore import files, plain, sealed, tiers
from troupe_tasks.keystore.tiers import Tier
from troupe_tasks.names import checked_id
from troupe_tasks.paths import Paths
from troupe_tasks.secret import Secret, fault_of
from troupe_tasks.text import line

_SERVICE: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_SUFFIXES: Final = (".cred", ".key")
# What durable.write leaves of a write that was cut: no key until it is renamed, but perhaps one inside.
_LEFTOVER: Final = re.compile(r"\.(?P<service>.{1,70})\.(cred|key)\.[0-9]+\.new")
_KEPT: Final = {
    Tier.TPM: "sealed by the TPM and the host key; it opens",
    Tier.HOST_KEY: "sealed by the host key; it opens",
    Tier.FILE: "a plain file that only you can read",
}


@dataclass(frozen=True, slots=True)
class Check:
    """Whether one file of a key folder is as it should be, and why; never the key."""

    service: str
    ok: bool
    why: str


class Keystore:
    """The keys of one agent."""

    def __init__(self, paths: Paths, agent_id: str) -> None:
        self._id = checked_id(agent_id)
        self._folder = paths.keys(agent_id)

    @property
    def tier(self) -> Tier:
        """Return how this agent's keys are kept; raises KeyRefused when its folder or file is not as made."""
        files.check_folder(self._folder)
        return tiers.read(self._folder)

    def create(self, tier: Tier) -> None:
        """Make the folder, with its tier for life. Done before is fine; with another tier it is KeyRefused."""
        if (
            files.check_folder(self._folder)
            and self._has_begun()
            and (found := tiers.read(self._folder)) != tier
        ):
            raise KeyRefused(
                f"{self._id}'s keys are kept by the tier {found}, for life", cause=f"{tier} was asked for",
                hint="Delete the agent and create it anew to change its tier.",
            )  # fmt: skip
        durable.make_private_dir(self._folder)
        tiers.write(self._folder, tier)

    def put(self, service: str, secret: Secret) -> None:
        """Store a key in the place of the old one, once it has been read back.

        Raises UsageError, KeyRefused, KeyFailed or DiskFull; the old key is then still there.
        """
        tier, path = self._place(service)
        if fault := fault_of(secret.reveal()):
            raise UsageError(f"that can't be a key: {fault}")
        if not files.check_folder(self._folder):
            raise KeyRefused(
                f"{self._id} has no folder for keys", cause="none were asked for when it was created"
            )
        self._sweep(service)
        if tier is Tier.FILE:
            plain.write(path, secret)
        else:
            sealed.write(path, secret, service=service, tier=tier)

    def read(self, service: str) -> Secret:
        """Return a key, by the agent's own tier. Raises KeyMissing, KeyRefused or KeyFailed."""
        tier, path = self._place(service)
        try:
            return plain.read(path) if tier is Tier.FILE else sealed.read(path, service=service, tier=tier)
        except FileNotFoundError:
            self._refuse_foreign(service, tier)
            raise KeyMissing(f"{self._id} has no key for {service}") from None

    def services(self) -> tuple[str, ...]:
        """Return the services that have a key of this agent's tier, by name."""
        if not files.check_folder(self._folder):
            return ()
        suffix = tiers.read(self._folder).suffix
        named = (entry.stem for entry in self._entries() if entry.suffix == suffix)
        return tuple(name for name in named if _SERVICE.fullmatch(name))

    def named(self) -> tuple[str, ...]:
        """Return the services that a file here is named for, whatever its form: whose keys a person has to revoke."""
        if self._folder.is_symlink() or not self._folder.is_dir():
            return ()
        names = {entry.stem for entry in self._entries() if entry.suffix in _SUFFIXES}
        return tuple(sorted(name for name in names if _SERVICE.fullmatch(name)))

    def remove(self, service: str) -> None:
        """Remove a key, overwriting a plain one first. Raises KeyMissing."""
        _, path = self._place(service)
        self._sweep(service)
        found = [file for suffix in _SUFFIXES if (file := path.with_suffix(suffix)) in self._entries()]
        if not found:
            raise KeyMissing(f"{self._id} has no key for {service}")
        for file in found:
            _burn(file)

    def destroy(self) -> None:
        """Remove the folder and all that is in it, overwriting plain keys first; nothing there is fine."""
        if self._folder.is_dir() and not self._folder.is_symlink():
            for entry in self._entries():
                if entry.suffix == ".key" or _LEFTOVER.fullmatch(entry.name):
                    _burn(entry)
        durable.remove_tree(self._folder)

    def check(self) -> tuple[Check, ...]:
        """Prove form, mode, owner and readability of each key, returning none; every other file is told.

        Raises KeyRefused when the folder itself, or its tier file, is not as it was made.
        """
        if not files.check_folder(self._folder):
            return ()
        tier = tiers.read(self._folder)
        return tuple(self._check(entry, tier) for entry in self._entries() if entry.name != tiers.NAME)

    def _check(self, entry: Path, tier: Tier) -> Check:
        if cut := _LEFTOVER.fullmatch(entry.name):
            return Check(
                line(cut["service"], 80),
                ok=False,
                why="left over from a write that was cut: set the key again",
            )
        if entry.suffix not in _SUFFIXES or not _SERVICE.fullmatch(entry.stem):
            return Check(line(entry.name, 80), ok=False, why="not a file that troupe makes")
        if entry.suffix != tier.suffix:
            return Check(entry.stem, ok=False, why=str(_foreign(entry, tier)))
        try:
            self.read(entry.stem).wipe()
        except TroupeError as error:
            return Check(entry.stem, ok=False, why=str(error))
        return Check(entry.stem, ok=True, why=_KEPT[tier])

    def _place(self, service: str) -> tuple[Tier, Path]:
        if not _SERVICE.fullmatch(service):
            raise UsageError(
                f"'{line(service, 80)}' is not a service's name",
                hint="It has lowercase letters, digits and hyphens, at most 63, and begins with no hyphen.",
            )
        tier = self.tier
        return tier, self._folder / f"{service}{tier.suffix}"

    def _refuse_foreign(self, service: str, tier: Tier) -> None:
        for suffix in _SUFFIXES:
            foreign = self._folder / f"{service}{suffix}"
            if suffix != tier.suffix and foreign in self._entries():
                raise _foreign(foreign, tier)

    def _has_begun(self) -> bool:
        return any(entry.name == tiers.NAME or entry.suffix in _SUFFIXES for entry in self._entries())

    def _entries(self) -> list[Path]:
        with durable.told(self._folder), suppress(FileNotFoundError):
            return sorted(self._folder.iterdir())
        return []

    def _sweep(self, service: str) -> None:
        for entry in self._entries():
            if (cut := _LEFTOVER.fullmatch(entry.name)) and cut["service"] == service:
                _burn(entry)


def _foreign(path: Path, tier: Tier) -> KeyRefused:
    return KeyRefused(
        f"{path} is not of the form of this agent's keys",
        cause=f"its tier is {tier}, whose files end in {tier.suffix}: another form never stands in for one",
    )


def _burn(path: Path) -> None:
    with suppress(StateUnreadable):  # a link or another's file: removed, and nothing written through it
        if not path.is_symlink():
            durable.overwrite(path)
    durable.remove_tree(path)
