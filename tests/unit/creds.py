"""A strict stand-in for systemd's programs that seal and open: the answers of systemd 257, from a world in a file.

It takes the argument lists that the keystore uses and no others. What it seals names the key it was sealed with, as
the real one's does. `root` says whether systemd-creds speaks as to root, whom it obeys and tells more.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from troupe_tasks import process

TPM_ID, HOST_ID = "ef4ac13679a9480ea7db68897f9f165d", "55b9ed1d38594d43a8319d2ebb332ac6"
_PROGRAM = f"""\
#!{sys.executable} -ISB
import base64, json, os, sys, time
world = json.load(open(os.path.join(os.path.dirname(sys.argv[0]), "world.json"), encoding="utf-8"))
TPM, HOST = bytes.fromhex("{TPM_ID}"), bytes.fromhex("{HOST_ID}")
def die(words, status=1):
    sys.stderr.write(words + "\\n"); sys.exit(status)
name, argv = os.path.basename(sys.argv[0]), sys.argv[1:]
if set(os.environ) - {{"PATH", "LANG", "HOME", "LC_ALL", "SYSTEMD_COLORS", "PWD", "LC_CTYPE"}}:
    die("the environment is not scrubbed: " + " ".join(os.environ), 9)
if argv == ["--version"]:
    print(f"systemd {{world['version']}} ({{world['version']}}.1)"); sys.exit(0)
if argv == ["has-tpm2"]:
    if (world["version"] >= 257) != (name == "systemd-analyze"):
        die("asked the wrong program", 9)
    print("yes" if world["tpm"] else "partial"); sys.exit(0 if world["tpm"] else 3)
if world["version"] < 256:
    die("systemd-creds: unrecognized option '--user'")
if world["sleeps"]:
    time.sleep(world["sleeps"])
if world["says"]:
    die(world["says"])
given, root = sys.stdin.buffer.read(), world["root"]
SOCKET = "/run/systemd/io.systemd.Credentials"
if name == "systemd-creds":
    if len(argv) != 6 or argv[0] != "--user" or argv[3:] != ["encrypt", "-", "-"]:
        die("unexpected arguments", 9)
    if argv[1] not in ("--with-key=host+tpm2", "--with-key=host") or not argv[2].startswith("--name="):
        die("unexpected arguments", 9)
    if not root and not world["service"]:
        die("Failed to connect to io.systemd.Credentials: Connection refused")
    wants = argv[1].endswith("tpm2") if root else bool(world["tpm"])
    if wants and not world["tpm"]:
        die("ERROR:tcti: Failed to open specified TCTI device file /dev/tpmrm0: No such file or directory\\n"
            "Failed to create TPM2 context: State not recoverable")
    if not world["host"]:
        die("Failed to determine local credential key: Read-only file system" if root
            else "Failed to encrypt: io.systemd.System")
    body = {{"name": argv[2].removeprefix("--name="), "user": world["user"], "host": world["host"],
            "key": given.decode(), "tpm": world["tpm"] if wants else "", "pcr": world["pcr"] if wants else ""}}
    raw = (TPM if wants else HOST) + bytes(48) + json.dumps(body, ensure_ascii=False).encode()
    text = base64.b64encode(raw).decode()
    print("\\n".join(text[at:at + 79] for at in range(0, len(text), 79))); sys.exit(0)
if argv != ["--json=short", "call", SOCKET, "io.systemd.Credentials.Decrypt"]:
    die("unexpected arguments", 9)
if not world["service"]:
    die(f"Failed to connect to '{{SOCKET}}': Connection refused")
def fail(error, **parameters):
    print(json.dumps(parameters)); die(f"Method call io.systemd.Credentials.Decrypt() failed: {{error}}")
asked = json.loads(given)
if asked.keys() != {{"name", "blob", "scope", "uid"}} or asked["scope"] != "user" or asked["uid"] != os.geteuid():
    die("unexpected parameters", 9)
if world["error"]:
    fail(*world["error"][:1], **world["error"][1])
try:
    body = json.loads(base64.b64decode(asked["blob"], validate=True)[64:])
except ValueError:
    fail("io.systemd.Credentials.BadFormat")
if body["tpm"] and body["tpm"] != world["tpm"]:
    fail("io.systemd.System", errno=131)
if body["tpm"] and body["pcr"] != world["pcr"]:
    fail("io.systemd.System", errno=1)
if not world["host"]:
    fail("io.systemd.System", errno=2)
if body["host"] != world["host"] or body["user"] != world["user"]:
    fail("io.systemd.Credentials.BadFormat")
if body["name"] != asked["name"]:
    fail("io.systemd.Credentials.NameMismatch")
key = body["key"] if world["opens_to"] is None else world["opens_to"]
print(json.dumps({{"data": base64.b64encode(key.encode()).decode()}}))
"""
WORLD: dict[str, Any] = {
    "version": 257, "tpm": "T1", "pcr": "P1", "host": "H1", "user": 1001, "service": True, "root": False, "says": "",
    "error": None, "sleeps": 0, "opens_to": None,
}  # fmt: skip


class Machine:
    """The world that the stand-ins are in, and can be changed while they are not running."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        for name in ("systemd-creds", "systemd-analyze", "varlinkctl"):
            (folder / name).write_text(_PROGRAM, encoding="utf-8")
            (folder / name).chmod(stat.S_IRWXU | 0o055)
        self.becomes()

    def becomes(self, **facts: object) -> None:
        """Make the world as it is by default, but for facts."""
        assert facts.keys() <= WORLD.keys()
        (self.folder / "world.json").write_text(json.dumps(WORLD | facts), encoding="utf-8")


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Put the stand-ins first on the search path of programs."""
    machine = Machine(folder)
    monkeypatch.setattr(process, "SYSTEM_PATH", os.pathsep.join([str(folder), process.SYSTEM_PATH]))
    return machine
