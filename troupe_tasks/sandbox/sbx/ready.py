"""Whether sbx can make a sandbox here: KVM, its release, its sign-in."""

from __future__ import annotations

import os
import platform

from troupe_tasks.errors import NotReady, SandboxFailed
from troupe_tasks.host import kvm, kvm_probe
from troupe_tasks.sandbox.sbx import calls, making, signin
from troupe_tasks.sandbox.sbx.signin import Standing


def check() -> None:
    """Raise NotReady where none would be made. A guest is run last: it takes seconds where KVM is there and broken."""
    if not os.access(kvm_probe.DEVICE, os.R_OK | os.W_OK):
        raise NotReady(f"sbx needs KVM, and you can't use {kvm_probe.DEVICE}")
    try:
        calls.check()
        _signed_in()
    except SandboxFailed as error:
        raise NotReady(error.what, cause=error.cause, hint=error.hint) from None
    machine = kvm.check() if platform.machine() == "x86_64" else None  # the probe is for that alone
    if machine is not None and machine.state is not kvm.KvmState.WORKS:
        raise NotReady(
            "sbx needs KVM, and it runs no guest here", cause=machine.detail, hint="`troupe doctor`"
        )


def _signed_in() -> None:
    found = signin.read()
    if found.standing in {Standing.OUT, Standing.DAMAGED}:
        raise NotReady("sbx is not signed in to Docker", cause=found.why, hint="`sbx login`")
    if found.standing is Standing.KEYRING:
        making.listing()  # which needs a sign-in: whether the keyring has one only sbx can tell
