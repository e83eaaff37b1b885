"""After a machine restart: what was started is there again, what was stopped is not."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.guest.inside import help as h
from troupe_tasks.paths import Paths
from troupe_tasks.services.protocol import Phase
from troupe_tasks.services.systemd import Systemd


def test_a_started_service_is_back_and_a_stopped_one_is_not() -> None:
    paths = Paths.from_env({"HOME": "/root"})
    keeper = Systemd(paths)
    h.until(lambda: h.phase(keeper) is Phase.RUNNING)
    assert h.phase(keeper, "gateway-down") is Phase.STOPPED
    assert h.service(paths).log.read_bytes() == b"up\nup\n"


def test_an_ordinary_users_is_back_without_a_login() -> None:
    log = Path("/home/op/.local/state/troupe/logs/jane/gateway-jane.log")
    h.until(lambda: log.read_bytes().count(b"up\n") == 3)  # it was killed once before
    found = subprocess.run(
        ["loginctl", "list-sessions", "--no-legend"], capture_output=True, text=True, check=True
    )
    assert "op" not in [row.split()[2] for row in found.stdout.splitlines() if "manager" not in row]


def test_shutdown_leaves_nothing_behind() -> None:
    keeper = Systemd(Paths.from_env({"HOME": "/root"}))
    process = h.pid(keeper)
    keeper.shutdown()
    assert h.is_gone(process)
    assert keeper.states() == {}
    found = [str(path) for path in Path("/etc/systemd/system").rglob("*hermes*")]
    assert found == []
