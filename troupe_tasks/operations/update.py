"""Bring an installed troupe up to date: the newest release's own installer does it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from troupe_tasks import durable, process, releases, resources, stamp
from troupe_tasks.errors import Refused, ReleaseFailed
from troupe_tasks.host import apt
from troupe_tasks.paths import Paths
from troupe_tasks.stamp import Stamp

_INSTALL_S = 1800
# The installer runs as if the person had started it: with their programs, their folders, their package index.
_KEPT = (
    "PATH", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "SANDBOXES_STORAGE_ROOT",
    "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS",  # a keyring, where sbx may keep its sign-in
)  # fmt: skip


class Update(BaseModel):
    """What an update came to."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    installed: str
    newest: str
    updated: bool


def update(paths: Paths, *, without_units: bool = False) -> Update:
    """Run the newest release's installer when it is newer; raises Refused, ReleaseFailed."""
    ours = _stamped(paths)
    newest = releases.newest(ours.address)
    if not releases.is_newer(newest, ours.version):
        return Update(installed=ours.version, newest=newest, updated=False)
    script = releases.installer(ours.address)
    file = durable.make_private_dir(paths.data / "releases") / ".install.sh"
    durable.write(file, script)
    words = ["--without-units"] if without_units else []
    try:
        status = process.terminal(
            ["timeout", "--foreground", str(_INSTALL_S), "sh", file, *words], env=_environment()
        )
    finally:
        file.unlink(missing_ok=True)
    if status != 0:
        raise ReleaseFailed(
            f"the installer of {newest} ended with status {status}; {ours.version} stays",
            cause="what it said is above", hint="Do what it says, then run `troupe update` again.",
        )  # fmt: skip
    return Update(installed=ours.version, newest=newest, updated=True)


def _stamped(paths: Paths) -> Stamp:
    """Return this troupe's stamp; raises Refused for one that no installer put here."""
    if resources.checkout() is not None:
        raise Refused("this troupe is a checkout", hint="`git pull` brings it up to date.")
    ours = stamp.read()
    releases_dir = (paths.data / "releases").resolve()
    if ours is None or not Path(sys.prefix).resolve().is_relative_to(releases_dir):
        raise Refused(
            "this troupe was not put here by its installer", cause=f"it runs from {sys.prefix}",
            hint="Bring it up to date by the means that installed it, or install a release: docs/installing.md.",
        )  # fmt: skip
    if not ours.address:
        raise Refused(
            "this build has no release address",
            hint="Get a newer release, then `sh install.sh --from DIR`: docs/installing.md.",
        )
    return ours


def _environment(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    kept = {name: value for name, value in env.items() if name in _KEPT or name.startswith("PIP_")}
    return {**apt.network_env(env), **kept}
