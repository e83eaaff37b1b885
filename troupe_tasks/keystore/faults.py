"""Tell apart why a key can't be sealed or opened: systemd's own programs end with status 1 for everything.

Sealing, only the words on stderr say why; they are those of systemd 257, as seen on a Debian 13 machine. Opening,
the credential service answers with an error's name, and `io.systemd.System` with an error number beside it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from troupe_tasks.errors import KeyFailed
from troupe_tasks.keystore.form import Form
from troupe_tasks.text import line


class Fault(StrEnum):
    """What kept a key from being sealed or opened."""

    NO_TPM = "no TPM"
    TPM_CHANGED = "TPM changed"
    BOOT_CHANGED = "Secure Boot changed"
    TPM_LOCKED = "TPM locked out"
    HOST_KEY = "host key gone"
    SCOPE = "wrong scope"
    NAME = "wrong name"
    FOREIGN = "damaged, or another's"
    WEAKER = "sealed weaker"
    DENIED = "not allowed"
    NO_SERVICE = "no credential service"
    TOO_OLD = "systemd too old"
    SILENT = "no answer"
    UNKNOWN = "unknown"


_AGAIN: Final = "set the key again: it is sealed anew, to the machine as it is now."
_HAS_TPM: Final = "`systemd-analyze has-tpm2` says what is missing."
_JOURNAL: Final = "as root, `journalctl -u 'systemd-creds@*'` says more."
_HOST_KEY: Final = "/var/lib/systemd/credential.secret"
# What it means, and what to do next.
_TOLD: Final = {
    Fault.NO_TPM: (
        "there is no TPM that systemd can use from here",
        f"Turn the TPM on in the firmware's settings; {_HAS_TPM} Without one, create the agent anew.",
    ),
    Fault.TPM_CHANGED: (
        "the TPM is another one, was cleared, or fails; or the file is damaged",
        f"Try again. If the TPM was changed, {_AGAIN}",
    ),
    Fault.BOOT_CHANGED: (
        "Secure Boot was turned on or off, or its keys changed (PCR 7): the TPM opens nothing sealed before",
        f"Put the firmware's settings back, or {_AGAIN}",
    ),
    Fault.TPM_LOCKED: (
        "the TPM has locked itself after failed attempts",
        "Leave the machine on for some hours, then try again.",
    ),
    Fault.HOST_KEY: (
        f"the machine's host key, {_HOST_KEY}, is gone; systemd removes it itself when the machine ID changed",
        f"Put both back from a backup, or {_AGAIN}",
    ),
    Fault.SCOPE: ("it is sealed for the system or for another user", f"As this user, {_AGAIN}"),
    Fault.NAME: (
        "the file holds another service's key: it was renamed",
        "Rename it back, or set the key again.",
    ),
    Fault.FOREIGN: (
        "the file is damaged, another user's, or sealed with another machine's host key",
        f"Put the file back from a backup, or {_AGAIN}",
    ),
    Fault.WEAKER: (
        "systemd sealed it with the host key alone, and this agent's keys are kept by the TPM",
        f"Try again; {_HAS_TPM} An old key is still there, untouched.",
    ),
    Fault.DENIED: ("systemd's credential service does not let this user", _JOURNAL),
    Fault.NO_SERVICE: (
        "systemd's credential service does not answer",
        "As root: `systemctl start systemd-creds.socket`.",
    ),
    Fault.TOO_OLD: (
        "systemd-creds is missing, or too old for a user's keys: 256 is the first",
        "Install it, or put systemd back to the version that it had.",
    ),
    Fault.SILENT: ("systemd did not answer in time", f"Try again; {_JOURNAL}"),
}
_TPM_FAULTS: Final = {Fault.NO_TPM, Fault.TPM_CHANGED, Fault.TPM_LOCKED, Fault.BOOT_CHANGED}
_SEALING: Final = tuple(
    (re.compile(words, re.IGNORECASE), fault)
    for words, fault in (
        (r"unrecognized option|invalid option|unknown (command|verb|operation)", Fault.TOO_OLD),
        (r"failed to (connect|open).*io\.systemd\.Credentials", Fault.NO_SERVICE),
        (r"PermissionDenied|InteractiveAuthenticationRequired", Fault.DENIED),
        (r"dictionary", Fault.TPM_LOCKED),
        (r"TCTI|TPM2 support|TPM2 (is )?not |no TPM2|TPM2 context", Fault.NO_TPM),
    )
)
# varlinkctl(1) on the service's answer; which errors there are: varlink-io.systemd.Credentials.c.
_ERROR: Final = re.compile(rb"^Method call .{1,80} failed: ([A-Za-z0-9.]{1,80})$", re.MULTILINE)
_OPENING: Final = {
    "BadFormat": Fault.FOREIGN,
    "BadScope": Fault.SCOPE,
    "CantFindPCRSignature": Fault.BOOT_CHANGED,
    "InteractiveAuthenticationRequired": Fault.DENIED,
    "InvalidParameter": Fault.FOREIGN,
    "KeyBelongsToOtherTPM": Fault.TPM_CHANGED,
    "MethodNotFound": Fault.TOO_OLD,
    "NameMismatch": Fault.NAME,
    "NVIndexUnusable": Fault.TPM_CHANGED,
    "PermissionDenied": Fault.DENIED,
    "TPMInDictionaryLockout": Fault.TPM_LOCKED,
    "UnexpectedPCRState": Fault.BOOT_CHANGED,
}
# What systemd's tpm2_unseal and get_credential_host_secret return, where the service has no name for it.
_NUMBERS: Final = {
    errno.EPERM: Fault.BOOT_CHANGED,
    errno.EREMCHG: Fault.BOOT_CHANGED,
    errno.ENOANO: Fault.BOOT_CHANGED,
    errno.EUCLEAN: Fault.BOOT_CHANGED,
    errno.EHOSTDOWN: Fault.BOOT_CHANGED,
    errno.ENOLCK: Fault.TPM_LOCKED,
    errno.EREMOTE: Fault.TPM_CHANGED,
    errno.ENOTRECOVERABLE: Fault.TPM_CHANGED,
    errno.EOPNOTSUPP: Fault.NO_TPM,
    errno.ENOENT: Fault.HOST_KEY,
}


def of_sealing(stderr: bytes) -> Fault:
    """Return why systemd-creds did not seal."""
    text = stderr.decode(errors="replace")
    return next((fault for words, fault in _SEALING if words.search(text)), Fault.UNKNOWN)


def of_opening(stderr: bytes, *, number: int | None, form: Form, has_tpm: Callable[[], bool]) -> Fault:
    """Return why the credential service did not open a file of a form; number is the error's, if it has one."""
    error = _ERROR.search(stderr)
    if error is None:
        return of_sealing(stderr)
    name = error.group(1).decode().rpartition(".")[2]
    fault = _OPENING.get(name) or _NUMBERS.get(number or 0, Fault.UNKNOWN)
    if fault in _TPM_FAULTS and form is not Form.TPM:
        return Fault.UNKNOWN
    return Fault.NO_TPM if fault is Fault.TPM_CHANGED and not has_tpm() else fault


def failed(what: str, fault: Fault, *, said: bytes = b"") -> KeyFailed:
    """Return the error for a fault; an unknown one shows what systemd said last."""
    last = line(said.strip().splitlines()[-1], 300) if said.strip() else "systemd said nothing"
    cause, hint = _TOLD.get(fault, (last, _JOURNAL))
    error = KeyFailed(what, cause=cause, hint=hint)
    error.fault = fault
    return error
