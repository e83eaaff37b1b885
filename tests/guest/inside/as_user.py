"""The life of a service under an ordinary user's own manager; it is left running for the next boot."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.guest.inside import help as h
from troupe_tasks.paths import Paths
from troupe_tasks.services import choose
from troupe_tasks.services.protocol import Phase
from troupe_tasks.services.systemd import Systemd

PATHS = Paths.from_env({"HOME": "/home/op"})


def main() -> None:
    keeper = choose.keeper(PATHS)
    assert isinstance(keeper, Systemd)
    for name in (h.NAME, "broker"):
        one = h.service(PATHS, name=name)
        first = h.started(keeper, one)
        os.kill(first, signal.SIGKILL)
        h.until(lambda name=name, first=first: keeper.states()[name].pid not in {None, first})  # type: ignore[misc]
    group = Path("/proc", str(h.pid(keeper)), "cgroup").read_text(encoding="ascii")
    print(group)
    assert "user@1001.service" in group
    assert keeper.stop(["broker"]) == ()
    assert h.phase(keeper, "broker") is Phase.STOPPED
    unit = "hermes-gateway@jane.service"
    found = subprocess.run(
        ["systemd-analyze", "--user", "verify", unit], capture_output=True, text=True, check=False,
        env={"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}", "HOME": "/home/op", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, ""), found.stderr


if __name__ == "__main__":
    main()
