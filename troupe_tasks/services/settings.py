"""supervisord's configuration, written from the services' descriptions.

It is one file with relative names, read with our folder as the working folder: supervisord's own format
can't hold every path (blanks, `%`, ` ;`, brackets), and a socket's path may have 107 bytes at most.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from troupe_tasks import durable, process, strict
from troupe_tasks.services import launch, protocol, relay
from troupe_tasks.services.protocol import Service

SOCKET = "supervisor.sock"
# supervisord makes relative names absolute; by this one the folder's own length does not count.
_SHORT = f"/proc/self/cwd/{SOCKET}"
_NAME = r"^[a-z0-9](?:[a-z0-9-]{0,70}[a-z0-9])?$"
_HEAD = f"""; Written by troupe: changes here are lost.
[unix_http_server]
file = {_SHORT}
chmod = 0700

[supervisord]
logfile = supervisord.log
logfile_maxbytes = 1MB
logfile_backups = 1
pidfile = supervisord.pid
nodaemon = true
silent = true
umask = 077
nocleanup = true

[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
"""


class Spec(BaseModel):
    """A service as it lies in programs/NAME.json; log is relative to the supervisor's folder."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(pattern=_NAME)
    argv: tuple[str, ...] = Field(min_length=1)
    env: Mapping[str, str]
    log: str = Field(pattern=r"^(\.\./){0,4}[A-Za-z0-9._/-]+$")
    start_s: int = Field(ge=1)
    start_tries: int = Field(ge=0)
    pauses_s: tuple[int, ...]
    limit_s: int = Field(ge=1)
    stop_wait_s: int = Field(ge=1)
    final_exits: tuple[int, ...]


def spec(service: Service, folder: Path) -> Spec:
    """Return a service's description: its program looked up now, its environment on top of the plain one."""
    argv = (process.which(service.argv[0], service.env), *service.argv[1:])
    return Spec(
        name=service.name,
        argv=relay.before(argv, whole_group=True) if service.relayed else argv,
        env=process.scrubbed(service.env),
        log=os.path.relpath(service.log, folder),
        start_s=service.start_s,
        start_tries=service.start_tries,
        pauses_s=service.pauses_s,
        limit_s=service.limit_s,
        stop_wait_s=service.stop_wait_s,
        final_exits=service.final_exits,
    )


def load(folder: Path) -> dict[str, Spec]:
    """Return every service's description, by name."""
    return {path.stem: _read(path) for path in sorted((folder / "programs").glob("*.json"))}


def _read(path: Path) -> Spec:
    return strict.parse(Spec, durable.read_private(path), place=path, hint=protocol.WRITTEN_ANEW)


def save(folder: Path, one: Spec) -> None:
    """Write a service's description."""
    durable.write(folder / "programs" / f"{one.name}.json", one.model_dump_json(indent=1).encode() + b"\n")


def write(folder: Path) -> None:
    """Write supervisord.conf for every service there is, the script that starts each, and the folders of their logs."""
    script = f'exec {shlex.join([sys.executable, "-I", "-S", launch.__file__])} "$1"\n'
    durable.write(folder / "launch.sh", script.encode())
    known = load(folder)
    for one in known.values():  # supervisord takes no settings in which one is missing
        durable.make_private_dir(Path(os.path.normpath(folder / one.log)).parent)
    sections = [_HEAD, *map(_section, known.values())]
    durable.write(folder / "supervisord.conf", "\n".join(sections).encode())


def _section(one: Spec) -> str:
    return f"""\
[program:{one.name}]
command = /bin/sh launch.sh {one.name}
autostart = false
autorestart = {"unexpected" if one.final_exits else "true"}
exitcodes = {",".join(map(str, one.final_exits)) or "0"}
startsecs = {one.start_s}
startretries = {one.start_tries}
stopsignal = INT
stopwaitsecs = {one.stop_wait_s}
stopasgroup = true
killasgroup = true
redirect_stderr = true
stdout_logfile = {one.log}
stdout_logfile_maxbytes = 5MB
stdout_logfile_backups = 3
"""
