"""The two tiers that seal: SERVICE.cred, made for this user and this service.

Sealed by systemd-creds(1). Opened by systemd's credential service (io.systemd.Credentials, what `systemd-creds --user
decrypt` itself asks for anybody but root), through varlinkctl(1): root's broker has neither the TPM's device nor the
capabilities for it, and the service says by a name or a number what went wrong, where systemd-creds says one word.

A file is read once, without following a link, and what was read is what is judged and opened: it goes on stdin, like
the key when it is sealed. So nothing can be put in its place between a look and a use.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import time
from pathlib import Path
from typing import Final

from troupe_tasks import durable, process
from troupe_tasks.errors import KeyRefused, ToolMissing, ToolTimeout
from troupe_tasks.keystore import choose, faults, files
from troupe_tasks.keystore.faults import Fault
from troupe_tasks.keystore.form import Form, form_of
from troupe_tasks.keystore.tiers import Tier
from troupe_tasks.secret import Secret
from troupe_tasks.secret import fault_of as no_key

_DEADLINE_S: Final = 30.0
# A TPM that is busy, or slow to answer, fails in the same words as one that was changed: it is asked again.
_PAUSES_S: Final = (0.5, 2.0)
_CAP_BYTES: Final = 8192
_SOCKET: Final = "/run/systemd/io.systemd.Credentials"
_OPEN: Final = ("varlinkctl", "--json=short", "call", _SOCKET, "io.systemd.Credentials.Decrypt")
_WITH_KEY: Final = {Tier.TPM: "host+tpm2", Tier.HOST_KEY: "host"}
# What may stand in for an agent's key: its own tier, or a stronger one, for systemd's service chooses by itself.
_ACCEPTED: Final = {Tier.TPM: {Form.TPM}, Tier.HOST_KEY: {Form.HOST, Form.TPM}}


def write(path: Path, secret: Secret, *, service: str, tier: Tier) -> None:
    """Seal a key and replace its file, once the new one has been opened again and is the same.

    Raises KeyFailed, whose `fault` says why it can't be sealed; the old file is then untouched.
    """
    what = f"the key for {service} can't be sealed"
    done = _call(
        ["systemd-creds", "--user", f"--with-key={_WITH_KEY[tier]}", f"--name={service}", "encrypt", "-", "-"],
        stdin=secret, what=what, deadline_s=_DEADLINE_S,
    )  # fmt: skip
    if done.status != 0:
        raise faults.failed(what, faults.of_sealing(done.stderr), said=done.stderr)
    form = form_of(done.stdout)
    if form not in _ACCEPTED[tier]:
        fault = Fault.WEAKER if form is Form.HOST else Fault.UNKNOWN
        raise faults.failed(what, fault, said=f"systemd-creds sealed it with {form}".encode())

    def prove(new: Path) -> None:
        with read(new, service=service, tier=tier) as found:
            if found != secret:
                raise faults.failed(what, Fault.UNKNOWN, said=b"it did not open to what was sealed")

    durable.write(path, done.stdout, tier.mode, prove=prove)


def read(path: Path, *, service: str, tier: Tier) -> Secret:
    """Open a key. Raises FileNotFoundError, KeyRefused for a wrong form, or KeyFailed, whose `fault` says why."""
    data = files.read(path, mode=tier.mode, cap_bytes=_CAP_BYTES)
    form = form_of(data)
    if form not in _ACCEPTED[tier]:
        raise KeyRefused(
            f"{path} is not sealed as this agent's keys are", cause=f"it is sealed with {form}",
            hint="It was not read. Set the key again.",
        )  # fmt: skip
    what = f"the key for {service} can't be opened"
    asked = {"name": service, "blob": b"".join(data.split()).decode(), "scope": "user", "uid": os.geteuid()}
    until = time.monotonic() + _DEADLINE_S
    for pause_s in (*_PAUSES_S, None):
        left_s = max(0.1, until - time.monotonic())
        done = _call([*_OPEN], stdin=json.dumps(asked).encode(), what=what, deadline_s=left_s)
        answer = _answer(done)
        if done.status == 0:
            return _opened(answer, path)
        number = answer.get("errno")
        fault = faults.of_opening(
            done.stderr, number=number if isinstance(number, int) else None, form=form, has_tpm=_has_tpm
        )
        if fault is not Fault.TPM_CHANGED or pause_s is None or time.monotonic() + pause_s > until:
            raise faults.failed(what, fault, said=done.stderr)
        time.sleep(pause_s)
    raise AssertionError("the last round returns or raises")


def _opened(answer: dict[str, object], path: Path) -> Secret:
    held = answer.get("data")
    try:
        key = base64.b64decode(held, validate=True) if isinstance(held, str) else b""
    except binascii.Error:
        key = b""
    if fault := no_key(key):
        raise KeyRefused(f"{path} holds no key", cause=fault, hint="Set the key again.")
    return Secret(key)


def _answer(done: process.Done) -> dict[str, object]:
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _has_tpm() -> bool:
    version = choose.version_of("systemd-creds")
    return version is not None and choose.has_tpm(version)


def _call(argv: list[str], *, stdin: bytes | Secret, what: str, deadline_s: float) -> process.Done:
    try:
        return process.run(
            argv, stdin=stdin, deadline_s=deadline_s, cap_bytes=_CAP_BYTES, ok=None,
            env={"LC_ALL": "C", "SYSTEMD_COLORS": "0"},
        )  # fmt: skip
    except ToolMissing as error:
        raise faults.failed(what, Fault.TOO_OLD) from error
    except ToolTimeout as error:
        raise faults.failed(what, Fault.SILENT) from error
