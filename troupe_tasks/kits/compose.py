"""What goes into an agent of a kit: the files of its state, the environment and the words of its commands."""

from __future__ import annotations

import io
import json
import secrets
import tarfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from troupe_tasks.errors import NotReady
from troupe_tasks.kits import seeds
from troupe_tasks.kits.model import Kit, Model
from troupe_tasks.sandbox.protocol import EGRESS_DIR

STATE = "/state"
HERMES_HOME = f"{STATE}/hermes"
WORKSPACE = "/workspace"
USAGE_FILE = "/tmp/self-test.json"
PROXY = "http://127.0.0.1:3128"
STAND_IN = "sk-rehearsal-"
REHEARSAL_VARIABLE = "REHEARSAL_API_KEY"
# The broker's authority, which signs every https host that an agent with keys sees.
AUTHORITY = f"{EGRESS_DIR}/ca.pem"
_TRUST = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT", "NODE_EXTRA_CA_CERTS",
)  # fmt: skip

# Reads the archive of `archive` on stdin, inside the sandbox, as the agent's own user.
UNPACK = ("tar", "--extract", "--file=-", f"--directory={STATE}", "--no-same-owner", "--preserve-permissions")

# Spares the package index a question at each start: the version is pinned, the answer would be unused.
_UPDATE_CHECK = b'{"ts": 9999999999, "rev": null, "ver": "%s", "behind": 0}\n'
_FOLDERS = ("hermes", "home")


@dataclass(frozen=True)
class StateFile:
    """A file put into a new agent, its path relative to /state."""

    path: str
    data: bytes
    mode: int = 0o600


def rehearsal_key() -> str:
    """Return a new stand-in for a model key: worthless outside this machine's rehearsal model."""
    return STAND_IN + secrets.token_hex(16)


def state_files(
    kit: Kit, *, variables: Mapping[str, str], settings: Mapping[str, str] | None, soul: bytes | None = None
) -> tuple[StateFile, ...]:
    """Return the files of a new agent's state: persona (the kit's, or soul), stand-ins, and which model it uses.

    settings is None for a rehearsal agent: its model is in the policy that the image holds.
    """
    persona = soul if soul is not None else kit.file("SOUL.md").read_bytes()
    lines = "".join(f"{name}={value}\n" for name, value in variables.items())
    files = [
        StateFile("hermes/.env", lines.encode()),
        StateFile("hermes/SOUL.md", persona),
        StateFile("hermes/.update_check", _UPDATE_CHECK % hermes_version(kit).encode()),
        *(StateFile(f"hermes/{seed.path}", seed.data, seed.mode) for seed in seeds.read(kit.folder)),
    ]
    if settings is not None and kit.model is not None:
        files.append(StateFile("hermes/config.yaml", _model(kit, kit.model, settings)))
    return tuple(files)


def _model(kit: Kit, model: Model, settings: Mapping[str, str]) -> bytes:
    """Return Hermes's config.yaml, as JSON, which is YAML too."""
    name, context = settings[model.name], int(settings[model.context_length])
    # Stated twice: without the first Hermes asks openrouter.ai for the model's size.
    chosen = {"provider": "custom:main", "default": name, "context_length": context}
    provider = {
        "base_url": model.at(settings), "default_model": name, "context_length": context,
        "api_mode": "chat_completions",
    }  # fmt: skip
    asked = (service for service in kit.services if service.model_provider and service.applies(settings))
    for service in asked:
        provider["key_env"] = service.variable
    return json.dumps({"model": chosen, "providers": {"main": provider}}, indent=1).encode() + b"\n"


def hermes_version(kit: Kit) -> str:
    """Return the version of Hermes that the kit's lock pins."""
    for line in kit.file("requirements.lock").read_text(encoding="ascii").splitlines():
        if line.startswith("hermes-agent"):
            return line.partition("==")[2].rstrip(" \\")
    raise NotReady(
        f"{kit.file('requirements.lock')} pins no hermes-agent", cause="an agent is Hermes, of that version",
        hint="Name it in requirements.in, lock that anew, and raise the kit's version.",
    )  # fmt: skip


def _above(path: str) -> Iterable[str]:
    return (str(folder) for folder in PurePosixPath(path).parents if folder.name)


def archive(files: Sequence[StateFile]) -> bytes:
    """Return a tar archive of the files and their folders, for UNPACK."""
    buffer, now = (
        io.BytesIO(),
        int(time.time()),
    )  # Hermes leaves files from before 1980 out of its own backups
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted({*_FOLDERS, *(above for file in files for above in _above(file.path))}):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode, folder.mtime = tarfile.DIRTYPE, 0o700, now
            tar.addfile(folder)
        for file in files:
            entry = tarfile.TarInfo(file.path)
            entry.size, entry.mode, entry.mtime = len(file.data), file.mode, now
            tar.addfile(entry, io.BytesIO(file.data))
    return buffer.getvalue()


def environment(kit: Kit, *, rehearsal: bool) -> dict[str, str]:
    """Return the environment of everything that runs in an agent of the kit."""
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), PROXY)
    direct = "127.0.0.1,localhost,::1"
    return {
        "PATH": f"/opt/{kit.name}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": f"{STATE}/home",
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "HERMES_HOME": HERMES_HOME,
        "HERMES_MANAGED_DIR": f"/etc/hermes/{'rehearsal' if rehearsal else 'live'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        **proxies,
        "NO_PROXY": direct,
        "no_proxy": direct,
        **({} if rehearsal else dict.fromkeys(_TRUST, AUTHORITY)),
    }


def turn(kit: Kit, message: str) -> list[str]:
    """Return the words that give the agent one message and print its reply."""
    return _filled(kit.commands.turn, {"message": message})


def self_test(kit: Kit, message: str) -> list[str]:
    """Return the words of a self-test: one message, and how it went as JSON in USAGE_FILE.

    Their exit status is 0 whenever any text came out; only the file tells whether the model answered.
    """
    return _filled(kit.commands.self_test, {"message": message, "usage": USAGE_FILE})


def _filled(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    return [_fill(word, values) for word in words]


def _fill(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        head, found, tail = word.partition(f"{{{name}}}")
        if found:
            return f"{head}{value}{tail}"  # a message that holds {usage} is left as it is
    return word
