"""What the tests inside the guest share: the keystore asked by root and by the ordinary user `op`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.tpm.inside.as_user import do

ROOT, OP = "root", "op"
AS_OP = ("setpriv", "--reuid=op", "--regid=op", "--init-groups")
BOTH = (ROOT, OP)
KEY = "sk-canary-0123456789abcdef"
HOST_KEY = Path("/var/lib/systemd/credential.secret")
HOMES = {ROOT: Path("/root"), OP: Path("/home/op")}


def keys(who: str, agent: str) -> Path:
    """Return the folder of an agent's keys."""
    return HOMES[who] / ".local/state/credentials" / agent


def asks(who: str, *asked: tuple[str, ...], key: str = KEY) -> list[dict[str, Any]]:
    """Do some things with the keystore as somebody; what was told is printed, for a failure's report."""
    told: list[dict[str, Any]] = do([*asked], key) if who == ROOT else _as_op([*asked], key)
    for words, one in zip(asked, told, strict=True):
        print(who, *words, one)
    assert key not in str(told)
    return told


def _as_op(asked: list[tuple[str, ...]], key: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [*AS_OP, sys.executable, "-m", "tests.tpm.inside.as_user"],
        input=json.dumps({"key": key, "asked": asked}), capture_output=True, text=True, check=False, timeout=600,
        cwd="/opt/troupe",
        env={"HOME": "/home/op", "PATH": os.environ["PATH"], "PYTHONPATH": os.environ["PYTHONPATH"]},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told: list[dict[str, Any]] = json.loads(done.stdout)
    return told


def reads(who: str, *agents: str) -> list[str]:
    """Return what kept somebody from reading each agent's key; "" where it is the key."""
    told = asks(who, *(("read", agent) for agent in agents))
    return [one["fault"] or ("" if one["same"] else "another key") for one in told]


def run(*argv: str) -> str:
    """Run a program to its good end and return what it printed."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
