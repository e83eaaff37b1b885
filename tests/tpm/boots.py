"""Boot a guest with a software TPM, or without one. Kept from conftest.py, which is read inside the guest too."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.guest import machine
from troupe_tasks import process

# What systemd loads to talk to a TPM, and tpm2-tools, which change one.
PACKAGES = (
    "libtss2-esys-3.0.2-0t64", "libtss2-rc0t64", "libtss2-mu-4.0.1-0t64", "libtss2-tcti-device0t64", "tpm2-tools",
)  # fmt: skip
# A TPM counts for systemd when the firmware used it too, which SeaBIOS does not.
_FIRMWARE = Path("/usr/share/ovmf/OVMF.fd")


def missing() -> str:
    """Return why there can be no such guest on this machine; empty when there can."""
    if reason := machine.missing():
        return reason
    lacking = [] if shutil.which("swtpm") else ["swtpm"]
    lacking += [] if _FIRMWARE.exists() else ["ovmf"]
    return f"a guest with a TPM needs the Debian packages {' '.join(lacking)}" if lacking else ""


@contextmanager
def tpm(state: Path) -> Iterator[tuple[str, ...]]:
    """Run a software TPM, whose memory is in a folder, and give QEMU's options for it."""
    state.mkdir(exist_ok=True)
    socket = state / "socket"
    socket.unlink(missing_ok=True)
    chip = process.spawn([
        "swtpm", "socket", "--tpm2", "--tpmstate", f"dir={state}", "--ctrl", f"type=unixio,path={socket}",
        "--flags", "startup-clear", "--terminate",
    ])  # fmt: skip
    try:
        until = time.monotonic() + 20
        while not socket.exists():
            assert chip.poll() is None, "the software TPM ended"
            assert time.monotonic() < until, "the software TPM did not start"
            time.sleep(0.05)
        yield (
            "-chardev", f"socket,id=tpm,path={socket}", "-tpmdev", "emulator,id=tpm0,chardev=tpm",
            "-device", "tpm-crb,tpmdev=tpm0",
        )  # fmt: skip
    finally:
        chip.kill()
        chip.wait(20)


def copy(old: Path, new: Path) -> None:
    process.run(["cp", "--sparse=always", old, new], deadline_s=120)


def boot(
    name: str, base: machine.Base, disk: Path, *, work: Path, devices: tuple[str, ...]
) -> dict[str, ET.Element]:
    code = work / f"{name}.tar"
    machine.code_disk(code, (name,), inside="tests/tpm")
    try:
        one = machine.boot(base, disk, code=code, logs=work / name, extra=("-bios", str(_FIRMWARE), *devices))
    except Exception:
        print((work / name / "tests.log").read_text(encoding="utf-8", errors="replace"))
        raise
    print(f"\nboot '{name}' took {one.took_s:.0f} s\n{one.said}")
    cases = (case for report in one.reports.values() for case in ET.fromstring(report).iter("testcase"))  # noqa: S314
    return {f"{name}:{case.get('name')}": case for case in cases}
