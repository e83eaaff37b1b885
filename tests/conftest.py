"""What every test gets: folders of its own, a plain locale, and seeds that are printed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("ci", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", deadline=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

# A run in a shell's background is started with both ignored, and so would be every program under test.
for number in (signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)

_XDG = {
    "XDG_DATA_HOME": ".local/share",
    "XDG_CONFIG_HOME": ".config",
    "XDG_STATE_HOME": ".local/state",
    "XDG_CACHE_HOME": ".cache",
    "XDG_RUNTIME_DIR": ".run",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the driver whose own runtime, the operator's, the tests are put to."""
    parser.addoption(
        "--driver", choices=("sbx",), help="prove this driver on the machine's own runtime: docs/real-sbx.md"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave only what can be put to the machine's own runtime, when that is asked for; skip it if that is not ready."""
    if config.getoption("--driver") is None:
        return
    from tests import own_sbx

    others = [item for item in items if item.get_closest_marker("own_sbx") is None]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]
    if why := own_sbx.lacking():
        for item in items:
            item.add_marker(pytest.mark.skip(reason=f"this machine's own sbx is not ready: {why}"))


@pytest.fixture(autouse=True)
def own_home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test a HOME and XDG folders in its own temporary folder, unless it is marked real_home."""
    if request.node.get_closest_marker("real_home"):
        return Path.home()
    home = tmp_path / "home"
    home.mkdir(mode=0o700, exist_ok=True)
    monkeypatch.setenv("HOME", str(home))
    for variable, folder in _XDG.items():
        monkeypatch.setenv(variable, str(home / folder))
    for variable in [name for name in os.environ if name.startswith(("TROUPE_AGENT", "HERMES_"))]:
        monkeypatch.delenv(variable)
    return home
