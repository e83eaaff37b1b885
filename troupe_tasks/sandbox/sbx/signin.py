"""Whether sbx is signed in to Docker, read from its store of secrets without running it and without a secret.

Where there is no keyring, sbx keeps secrets beneath `com.docker.sandboxes` in the user's settings: a folder for each,
named for the secret in base64, with a file of plain facts, `metadata.json`, and the sealed ones, `secret…` (the store
`posixage` of docker/secrets-engine). The sign-in is `docker/auth/hub/USER`. Whatever else is found is damage, which
is no sign-in. A keyring is not opened, nor anything started that could: only whether there can be one is looked at.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from troupe_tasks import durable
from troupe_tasks.errors import TroupeError

_PLACE = "com.docker.sandboxes"
_ACCOUNT = "docker/auth/hub/"
_CAP_BYTES = 65536
_MOST = 2000  # folders looked at
_DEEPEST = 4
# By these the session's bus starts a keyring when it is asked for one: GNOME's (and whoever takes its place), KDE's.
_ACTIVATIONS = ("org.freedesktop.secrets.service", "org.kde.secretservicecompat.service", "org.kde.kwalletd5.service",
                "org.kde.kwalletd6.service")  # fmt: skip
# And these are one's that runs already.
_SOCKETS = ("keyring/control", "kwallet5.socket", "kwallet6.socket")


class Standing(Enum):
    """How the sign-in stands."""

    IN = "in"
    OUT = "out"
    DAMAGED = "damaged"
    KEYRING = "keyring"


@dataclass(frozen=True)
class SignIn:
    """How the sign-in stands, as whom, or what is damaged."""

    standing: Standing
    user: str = ""
    why: str = ""


def read(env: Mapping[str, str] = os.environ) -> SignIn:
    """Return how the sign-in of env's user stands."""
    config = env.get("XDG_CONFIG_HOME", "")
    root = Path(config if config.startswith("/") else f"{env.get('HOME', '/')}/.config") / _PLACE
    found = SignIn(Standing.KEYRING if _keyring(env) else Standing.OUT)
    for folder, user in _accounts(root):
        why = _damage(folder)
        if not why:
            return SignIn(Standing.IN, user)
        found = SignIn(Standing.DAMAGED, user, why)
    return found


def _keyring(env: Mapping[str, str]) -> bool:
    """Tell whether a keyring can be there; a bus alone is no sign of it, for every login over ssh has one."""
    if not env.get("DBUS_SESSION_BUS_ADDRESS"):
        return False
    home, runtime = env.get("HOME", "/"), env.get("XDG_RUNTIME_DIR", "")
    data = [env.get("XDG_DATA_HOME") or f"{home}/.local/share"]
    data += (env.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share").split(":")
    places = [
        Path(folder, "dbus-1/services", name)
        for folder in data
        if folder.startswith("/")
        for name in _ACTIVATIONS
    ]
    places += [Path(runtime, name) for name in _SOCKETS if runtime.startswith("/")]
    return any(os.path.lexists(place) for place in places)


def _accounts(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folders of sign-ins, each with its user's name, following no link."""
    left = _MOST
    pending = [(root, 0)]
    while pending and left > 0:
        folder, depth = pending.pop()
        try:
            inside = sorted(entry for entry in folder.iterdir() if stat.S_ISDIR(entry.lstat().st_mode))
        except OSError:
            continue
        for entry in inside[:left]:
            left -= 1
            name = _decoded(entry.name)
            if name.startswith(_ACCOUNT) and len(name) > len(_ACCOUNT):
                yield entry, name.removeprefix(_ACCOUNT)
            elif depth < _DEEPEST:
                pending.append((entry, depth + 1))


def _decoded(name: str) -> str:
    try:
        return base64.b64decode(name, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""


def _damage(folder: Path) -> str:
    """Return what is wrong with a stored sign-in, or nothing."""
    try:
        facts = json.loads(durable.read_private(folder / "metadata.json", _CAP_BYTES))
    except FileNotFoundError:
        return "it has no metadata.json"
    except (TroupeError, ValueError, RecursionError):
        return "its metadata.json does not read"
    if not isinstance(facts, dict) or not all(isinstance(value, str) for value in facts.values()):
        return "its metadata.json is not what sbx writes"
    if not facts:
        return "its metadata.json is empty"
    try:
        sealed = [entry.lstat() for entry in folder.iterdir() if entry.name.startswith("secret")]
    except OSError as error:
        return f"it can't be read: {error.strerror}"
    if not any(stat.S_ISREG(found.st_mode) and found.st_size for found in sealed):
        return "it holds no sealed secret"
    return ""
