"""Compile the containers project's seccomp profile, an allowlist kept by its maintainers, for this machine.

Debian and Ubuntu install it with golang-github-containers-common. Rules that would be allowed only with a
capability are left out, because nothing inside has one.
"""

from __future__ import annotations

import errno
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from troupe_tasks.errors import NotReady

PROFILE = Path("/usr/share/containers/seccomp.json")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Condition(_Part):
    caps: list[str] | None = None
    arches: list[str] | None = None
    min_kernel: str | None = Field(default=None, alias="minKernel")


class _Argument(_Part):
    index: int
    value: int
    value_two: int = Field(default=0, alias="valueTwo")
    op: str


class _Rule(_Part):
    names: list[str] = Field(default_factory=list)
    action: str
    args: list[_Argument] | None = None
    includes: _Condition = _Condition()
    excludes: _Condition = _Condition()
    errno_ret: int | None = Field(default=None, alias="errnoRet")


class _Profile(_Part):
    default_action: str = Field(alias="defaultAction")
    default_errno: int | None = Field(default=None, alias="defaultErrnoRet")
    syscalls: list[_Rule]


def compile_profile(file: Path = PROFILE) -> bytes:
    """Return the profile as a BPF program. Raises NotReady when it, or libseccomp, is not there or does not read."""
    try:
        profile = _Profile.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        raise NotReady(
            f"the seccomp profile {file} is not here",
            hint="Install the package golang-github-containers-common.",
        ) from None
    except ValidationError as error:
        raise NotReady(
            f"{file} does not read as a seccomp profile", cause=str(error.errors()[0]["msg"])
        ) from None
    try:
        import pyseccomp
    except (ImportError, RuntimeError, OSError) as error:
        raise NotReady(
            "libseccomp does not load", cause=str(error), hint="Install the package libseccomp2."
        ) from None
    return _compile(profile, pyseccomp)


def _compile(profile: _Profile, library: Any) -> bytes:
    default = _action(library, profile.default_action, profile.default_errno)
    rules = library.SyscallFilter(defaction=default)
    for rule in profile.syscalls:
        action = _action(library, rule.action, rule.errno_ret)
        if action == default or not _applies(rule):
            continue
        arguments = [_argument(library, argument) for argument in rule.args or ()]
        for name in rule.names:
            try:
                rules.add_rule(action, name, *arguments)
            except (OSError, ValueError, RuntimeError):
                continue  # a call that this machine or this libseccomp does not have keeps the default: refused
    with tempfile.TemporaryFile() as out:
        rules.export_bpf(out)
        size = os.fstat(out.fileno()).st_size
        return os.pread(out.fileno(), size, 0)


def _action(library: Any, name: str, number: int | None) -> int:
    if name == "SCMP_ACT_ERRNO":
        return int(library.ERRNO(errno.EPERM if number is None else number))
    return int({"SCMP_ACT_ALLOW": library.ALLOW}.get(name, library.KILL_PROCESS))


def _argument(library: Any, argument: _Argument) -> Any:
    op = getattr(library, argument.op.removeprefix("SCMP_CMP_"))
    if argument.op == "SCMP_CMP_MASKED_EQ":
        return library.Arg(argument.index, op, argument.value, argument.value_two)
    return library.Arg(argument.index, op, argument.value)


def _applies(rule: _Rule) -> bool:
    arch = _MACHINES.get(platform.machine(), platform.machine())
    wanted, unwanted = rule.includes, rule.excludes
    if wanted.caps or (wanted.arches and arch not in wanted.arches):
        return False
    if unwanted.arches and arch in unwanted.arches:
        return False
    return not wanted.min_kernel or _version(platform.release()) >= _version(wanted.min_kernel)


def _version(text: str) -> tuple[int, ...]:
    parts = text.split("-", maxsplit=1)[0].split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())
