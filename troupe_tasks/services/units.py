"""The systemd units of one home: what they are called, where they go, and what is in each.

A unit of ours is a file of `units/` as it is, and a drop-in beside it with what only this service has. What
either manager refuses to an ordinary user stands in the files below a marked line, and is left out for them.
Names carry a tag unless the home is the user's ordinary one, so that two homes of one user don't clash.
"""

from __future__ import annotations

import glob
import hashlib
import os
import pwd
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from troupe_tasks import process, resources
from troupe_tasks.errors import NotReady
from troupe_tasks.names import BROKER, SHARED
from troupe_tasks.paths import Paths
from troupe_tasks.services import relay, rotate
from troupe_tasks.services.protocol import FIRST_PAUSE_S, Service

_SYSTEM_ONLY = "# --- The rest only the system manager can give"
_GATEWAY = "gateway-"
# The broker is there whenever an agent is, so the timer that rotates every log comes and goes with it.
_ROTATION = ("troupe-logs.timer", "troupe-logs.service")
_TEMPORARY = (Path("/tmp"), Path("/var/tmp"))


@dataclass(frozen=True)
class Place:
    """A service manager: the options that reach it, where it reads units, what starts them with the machine."""

    options: tuple[str, ...]
    folder: Path
    target: str
    system: bool


def place() -> Place:
    """Return root's system manager, or an ordinary user's own."""
    if os.geteuid() == 0:
        return Place((), Path("/etc/systemd/system"), "multi-user.target", system=True)
    home = Path(pwd.getpwuid(os.geteuid()).pw_dir)  # the manager's, whatever HOME says
    return Place(("--user",), home / ".config/systemd/user", "default.target", system=False)


def tag(paths: Paths) -> str:
    """Return what tells this home's units from another's; empty for the user's ordinary home."""
    ordinary = Paths.from_env({"HOME": pwd.getpwuid(os.geteuid()).pw_dir})
    return "" if paths == ordinary else "-" + hashlib.sha256(os.fsencode(paths.state)).hexdigest()[:8]


class Unit(BaseModel):
    """A service as it was installed; it lies in units/NAME.json, written last."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    unit: str
    digest: str
    start_s: int = Field(ge=1)
    stop_wait_s: int = Field(ge=1)
    final_exits: tuple[int, ...]


@dataclass(frozen=True)
class Files:
    """Where a service's unit lies, and how it is called."""

    unit: str
    base: Path
    drop_in: Path
    link: Path
    env: Path
    note: Path
    extra: tuple[Path, ...] = ()

    def own(self) -> tuple[Path, ...]:
        """Return the unit files and drop-ins that no other service has a part in."""
        alone = (self.drop_in,) if "@" in self.unit else (self.drop_in, self.base)
        return alone + self.extra


def files(name: str, paths: Paths, at: Place) -> Files:
    """Return the places of a service's files. Raises NotReady for a name that has no unit."""
    mark = tag(paths)
    if name.startswith(_GATEWAY):
        base, unit = (
            f"hermes-gateway{mark}@.service",
            f"hermes-gateway{mark}@{name.removeprefix(_GATEWAY)}.service",
        )
    elif name in SHARED:
        base = unit = f"troupe-{name}{mark}.service"
    else:
        raise NotReady(f"there is no unit for the service {name}")
    own = paths.state / "units"
    return Files(
        unit=unit, base=at.folder / base, drop_in=at.folder / f"{unit}.d" / "troupe.conf",
        link=at.folder / f"{at.target}.wants" / unit, env=own / f"{name}.env", note=own / f"{name}.json",
        extra=_rotation(mark, at) if name == BROKER else (),
    )  # fmt: skip


def _rotation(mark: str, at: Place) -> tuple[Path, ...]:
    names = [name.replace(".", f"{mark}.") for name in _ROTATION]
    return (*(at.folder / name for name in names), at.folder / f"{names[1]}.d" / "troupe.conf")


def contents(service: Service, paths: Paths, at: Place) -> dict[Path, bytes]:
    """Return each file of a service's unit with what belongs in it."""
    where = files(service.name, paths, at)
    template = "hermes-gateway@.service" if "@" in where.unit else f"troupe-{service.name}.service"
    env = process.scrubbed(service.env)
    rotation = (*(_base(name, at) for name in _ROTATION), _rotation_drop_in(paths, at).encode())
    return {
        **dict(zip(where.extra, rotation, strict=True) if where.extra else ()),
        where.base: _base(template, at),
        where.env: "".join(f"{key}={_env(value)}\n" for key, value in sorted(env.items())).encode(),
        where.drop_in: drop_in(service, paths, at).encode(),
    }


def _base(name: str, at: Place) -> bytes:
    text = (resources.units_dir() / name).read_text(encoding="utf-8")
    return (text if at.system else text.partition(_SYSTEM_ONLY)[0]).encode()


def _rotation_drop_in(paths: Paths, at: Place) -> str:
    logs = paths.logs("")
    argv = (sys.executable, "-I", "-S", rotate.__file__, str(logs))
    rows = [
        "# Written by troupe: changes here are lost.",
        "[Service]",
        f"ExecStart=:{' '.join(map(quoted, argv))}",
    ]
    if at.system:
        rows += [f"ReadWritePaths={quoted(str(logs))}", *_temporary(logs, *argv)]
    return "\n".join(rows) + "\n"


def note(service: Service, paths: Paths, at: Place, written: Mapping[Path, bytes]) -> Unit:
    """Return the description that says: these files are there, and the manager knows them."""
    total = hashlib.sha256()
    for path, data in sorted(written.items()):
        total.update(f"{path} {len(data)}\n".encode() + data)
    return Unit(
        unit=files(service.name, paths, at).unit, digest=total.hexdigest(), start_s=service.start_s,
        stop_wait_s=service.stop_wait_s, final_exits=service.final_exits,
    )  # fmt: skip


def drop_in(service: Service, paths: Paths, at: Place) -> str:
    """Return what only this service has."""
    argv = (process.which(service.argv[0], service.env), *service.argv[1:])
    if service.relayed:
        argv = relay.before(argv, whole_group=False)  # KillMode=mixed asks the main process alone
    where = files(service.name, paths, at)
    rows = [
        "# Written by troupe: changes here are lost.",
        "[Unit]",
        f"RequiresMountsFor={quoted(str(paths.state))}",
        f"StartLimitIntervalSec={service.limit_s}",
        f"StartLimitBurst={service.start_tries + 1}",
        *([f"Wants={where.extra[0].name}"] if where.extra else []),
        # Of another user's manager nothing can be said; there the restarts bridge it.
        *(f"{how}={unit}" for unit in (service.stands_on if at.system else ()) for how in ("Wants", "After")),
        "",
        "[Service]",
        # With the colon, `$` is a letter like any other.
        f"ExecStart=:{' '.join(map(quoted, argv))}",
        f"EnvironmentFile={glob.escape(_path(where.env))}",
        f"StandardOutput=append:{_path(service.log)}",
        "StandardError=inherit",
        f"RestartSec={FIRST_PAUSE_S}",
        f"RestartSteps={max(service.start_tries, 1)}",
        f"RestartMaxDelaySec={service.longest_pause_s}",
        f"TimeoutStopSec={service.stop_wait_s}",
    ]
    if service.final_exits:
        finals = " ".join(map(str, service.final_exits))
        # Not a success for systemd, which forgets how a unit that did well ended.
        rows.append(f"RestartPreventExitStatus={finals}")
    if at.system and service.name in SHARED:
        rows.append(f"ReadWritePaths={quoted(str(paths.state))}")
        rows += _temporary(paths.state, paths.data, paths.config, *argv)
    return "\n".join(rows) + "\n"


def _temporary(*needed: Path | str) -> list[str]:
    """Return the line that keeps a service from losing what it needs in /tmp."""
    hidden = any(Path(path).is_relative_to(folder) for path in needed for folder in _TEMPORARY)
    return ["PrivateTmp=no"] if hidden else []


def quoted(word: str) -> str:
    """Return a word as systemd's own syntax reads it back: quotes, backslashes, `%`, control characters."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return '"' + "".join(c if c.isprintable() or ord(c) > 0x9F else f"\\x{ord(c):02x}" for c in plain) + '"'


def _env(value: str) -> str:
    for letter in '\\"$`':
        value = value.replace(letter, f"\\{letter}")
    return f'"{value}"'


def _path(path: Path) -> str:
    text = str(path)
    if "\n" in text or text != text.strip() or text.endswith("\\"):
        raise NotReady(f"systemd can't be told of the path {path}", hint="Choose folders with plainer names.")
    return text.replace("%", "%%")
