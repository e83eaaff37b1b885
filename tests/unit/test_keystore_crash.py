"""A machine that stops at any moment of a replacement has the old key or the new one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit import creds
from troupe_tasks import process
from troupe_tasks.keystore.tiers import Tier

ROOT = Path(__file__).resolve().parents[2]
# Replaces a key again and again, each time killed one step later, and tells what is there then.
VICTIM = """
import json, os, signal, stat, sys, traceback
from pathlib import Path
from troupe_tasks import process
from troupe_tasks.keystore.store import Keystore
from troupe_tasks.keystore.tiers import Tier
from troupe_tasks.paths import Paths
from troupe_tasks.secret import Secret

process.SYSTEM_PATH = sys.argv[2]
store = Keystore(Paths.from_env(), "jane")
store.create(Tier(sys.argv[1]))
folder, found = Paths.from_env().keys("jane"), []

def counted(real, left):
    def call(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)
    return call

for step in range(1, 60):
    store.put("openrouter", Secret(b"old"))
    child = os.fork()
    if child == 0:
        left = [step]
        for name in ("fsync", "fchmod", "replace", "unlink", "chmod"):
            setattr(os, name, counted(getattr(os, name), left))
        real = os.write
        step_of_write = counted(real, left)
        os.write = lambda to, data: (step_of_write if stat.S_ISREG(os.fstat(to).st_mode) else real)(to, data)
        try:
            store.put("openrouter", Secret(b"new"))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    found.append([status, store.read("openrouter").reveal().decode(), names])
    if status != -signal.SIGKILL:
        break
store.put("openrouter", Secret(b"last"))
left = [entry.name for entry in folder.iterdir() if entry.name.startswith(".")]
print(json.dumps({"found": found, "left": left}))
"""


@pytest.mark.parametrize("tier", list(Tier))
def test_killed_at_any_step_the_old_or_the_new_key_is_there(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch, tier: Tier
) -> None:
    machine = creds.stand_in(tmp_path / "bin", monkeypatch)
    machine.becomes(tpm="" if tier is Tier.HOST_KEY else "T1")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", VICTIM, tier, process.SYSTEM_PATH],
        capture_output=True, text=True, cwd=ROOT, timeout=150, check=False,
        env={"HOME": str(own_home), "PYTHONPATH": str(ROOT), "PATH": process.SYSTEM_PATH},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    *cut, last = told["found"]
    assert len(cut) >= 6
    assert {status for status, _, _ in cut} == {-9}
    assert last[:2] == [0, "new"]
    keys = [text for _, text, _ in told["found"]]
    assert keys == sorted(keys, reverse=True)  # old until the one step that makes it new
    assert {tuple(names) for _, _, names in told["found"]} == {(f"openrouter{tier.suffix}", "tier")}
    assert told["left"] == []  # what the cut ones left is swept by the next
