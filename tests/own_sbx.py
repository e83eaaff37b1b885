"""This machine's own Docker Sandboxes, for the tests that `--driver sbx` puts to them: docs/real-sbx.md tells of it.

The tests' troupe has folders of its own, so no agent of the operator's is touched. Their `sbx` is a wrapper that gives
the operator's HOME back, since there it is signed in, and its daemon's sandboxes are the operator's.
"""

from __future__ import annotations

import base64
import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import JsonValue, TypeAdapter

_JSON: TypeAdapter[dict[str, JsonValue]] = TypeAdapter(dict[str, JsonValue])
# What a session may change of sbx, and must leave as it was; the key beneath which each tells its entries.
_LISTINGS = {
    "sandboxes": ("ls", "--json"),
    "images": ("template", "ls", "--json"),
    "rules": ("policy", "ls", "--json"),
    "secrets": ("secret", "ls", "--json"),
    "value": ("settings", "get", "kit.allowedSources", "--json"),
}
_FOUND_BY = ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR",
             "SANDBOXES_STORAGE_ROOT", "DBUS_SESSION_BUS_ADDRESS")  # fmt: skip
_PATIENCE = 5


def lacking() -> str:
    """Return what stands in the way of agents here, or nothing: of KVM, sbx and its sign-in the doctor says it."""
    from troupe_tasks.doctor import docker, hardware
    from troupe_tasks.doctor.machine import Machine
    from troupe_tasks.doctor.run import CHECKS, run_doctor
    from troupe_tasks.doctor.show import stops
    from troupe_tasks.paths import Paths

    checks = tuple(
        one for one in CHECKS if one.check in (hardware.virtualization, docker.program, docker.sign_in)
    )
    machine = Machine.here(Paths.from_env(), patience=_PATIENCE)
    found = stops(run_doctor(machine, driver="sbx", checks=checks, patience=_PATIENCE))
    return "; ".join(f"{one.requirement}: {one.detail}" for one in found) or _running()


def _running() -> str:
    """Return which sandboxes of the operator's run: sbx tells no size of theirs, so we make none beside them."""
    from troupe_tasks.sandbox.sbx import making

    names = [one.name for one in making.listing() if one.status == "running"]
    return (
        f"stop these sandboxes of yours first, whose sizes sbx does not tell: {', '.join(names)}"
        if names
        else ""
    )


class Sbx:
    """A program `sbx`, and all that it tells of itself. The stand-in is one as well."""

    def __init__(self, program: Path, env: Mapping[str, str] | None = None) -> None:
        self.program, self._env = program, dict(os.environ if env is None else env)

    def call(self, words: Sequence[str]) -> bytes:
        """Run one command to its end, which has to be good."""
        done = self._run(words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def have_policy(self) -> None:
        """Set what troupe would set, where there is no policy: without one sbx does not even list its rules."""
        done = self._run(_LISTINGS["rules"])
        if done.returncode != 0 and b"has not been initialized" in done.stdout + done.stderr:
            self.call(["policy", "init", "balanced"])

    def _run(self, words: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [str(self.program), *words], env=self._env, stdin=subprocess.DEVNULL, capture_output=True, timeout=120,
            check=False,
        )  # fmt: skip

    def holds(self) -> dict[str, list[str]]:
        """Return everything of sbx that a test could leave behind, each entry as text that stays the same."""
        return {key: sorted(_entries(key, self.call(words))) for key, words in _LISTINGS.items()}

    def put_back(self, before: Mapping[str, list[str]]) -> None:
        """Remove the templates that were not there before: troupe keeps an image's while an agent may want it."""
        for name in sorted(set(self.holds()["images"]) - set(before["images"])):
            self.call(["template", "rm", "--force", name])

    @contextmanager
    def left_as_it_was(self) -> Iterator[None]:
        """Prove that whatever happens within leaves nothing in sbx but a policy, where there was none."""
        self.have_policy()
        before = self.holds()
        yield
        self.put_back(before)
        assert self.holds() == before


def _entries(key: str, said: bytes) -> Iterator[str]:
    found = _JSON.validate_json(said[said.index(b"{") :])[key]
    for entry in found if isinstance(found, list) else [found]:
        if not isinstance(entry, dict):
            yield str(entry)
        elif key == "images":
            yield f"{entry['repository']}:{entry['tag']}"
        else:
            yield " ".join(str(entry.get(name)) for name in ("id", "name", "scope", "type"))


def wrapped(folder: Path) -> Sbx:
    """Make a program `sbx` in a folder that is the operator's own one, wherever HOME points when it is called."""
    from troupe_tasks.sandbox.sbx import calls

    kept = {name: os.environ[name] for name in _FOUND_BY if name in os.environ}
    gone = " ".join(f"-u {name}" for name in _FOUND_BY if name not in kept)
    given = " ".join(shlex.quote(f"{name}={value}") for name, value in kept.items())
    program = folder / "sbx"
    folder.mkdir(parents=True, exist_ok=True)
    program.write_text(
        f'#!/bin/sh\nexec env {gone} {given} {shlex.quote(str(calls.binary()))} "$@"\n', encoding="utf-8"
    )
    program.chmod(0o755)
    return Sbx(program)


def sign_in(config: Path) -> Path:
    """Leave what a signed-in sbx leaves in its store, without the secret, and return its folder.

    That the operator's own is signed in was asked before; the tests' troupe looks in folders of its own.
    """
    account = config / "com.docker.sandboxes" / base64.b64encode(b"docker/auth/hub/jo").decode()
    account.mkdir(parents=True)
    (account / "metadata.json").write_text('{"user": "jo"}', encoding="utf-8")
    (account / "secretpass").write_text("sealed", encoding="utf-8")
    return account.parent


def is_asked(config: pytest.Config) -> bool:
    """Tell whether this run is to use the machine's own sbx."""
    return bool(config.getoption("--driver") == "sbx")
