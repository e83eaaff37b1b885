"""`troupe upgrade` from a private registry, with no terminal: its token is a line of stdin, the new key the next."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.standin_sbx import sbx as standin
from tests.registries import TOKEN, USER, a_kit, forwarding, lying, needs_registry, registry, somebody
from troupe_tasks import config
from troupe_tasks import record as records
from troupe_tasks.keystore.store import Keystore
from troupe_tasks.keystore.tiers import Tier
from troupe_tasks.kits import local, pins, publish
from troupe_tasks.kits.registry import Place, Registry
from troupe_tasks.paths import Paths
from troupe_tasks.record import KitPin, Record, Sizes

pytestmark = needs_registry
ROOT = Path(__file__).parents[2]
KEY = "key-of-the-provider-0123456789"
SERVICE = {
    "name": "desk", "line": "Its key.", "required": True, "variable": "DESK_KEY", "hosts": ["desk.example.com"],
    "place": {"form": "bearer"}, "stand_in": "desk-{hex:32}",
}  # fmt: skip


def an_agent(tmp_path: Path, *, driver: str = "capsule") -> None:
    """Record an agent of the kit's first version, which needs no key."""
    paths = Paths.from_env()
    pins.pin(local.read(a_kit(tmp_path), name="mime"), paths)
    records.save(paths, Record(
        id="jane", name="Jane", kit=KitPin(type="mime", version="1.2.3"), driver=driver, isolation="gvisor",
        rehearsal=False, key_tier="file", sizes=Sizes(cpus=1, memory_mib=64, storage_mib=64), created_at="now",
    ))  # fmt: skip
    Keystore(paths, "jane").create(Tier.FILE)


def test_the_token_is_asked_once_and_the_registry_never_sees_the_key(tmp_path: Path) -> None:
    an_agent(tmp_path)
    newer = a_kit(tmp_path, version="1.3.0")
    (newer / "services.json").write_text(json.dumps({"services": [SERVICE]}), encoding="utf-8")
    with registry(tmp_path / "registry", private=True) as host, lying(forwarding(host)) as seen:
        publish.publish(publish.packed(newer), Registry(Place.of(f"{host}/kits"), somebody), lambda _: None)
        config.put(Paths.from_env(), "registry", f"{seen.place}/kits")
        done = subprocess.run(
            [sys.executable, "-m", "troupe_tasks", "upgrade", "jane", "--force"], cwd=ROOT, capture_output=True,
            input=f"{USER}:{TOKEN}\n{KEY}\n", encoding="utf-8", timeout=60, check=False,
        )  # fmt: skip
    own = base64.b64encode(f"{USER}:{TOKEN}".encode()).decode("ascii")
    assert {authorization for _, _, authorization in seen.asked} == {"", f"Basic {own}"}
    assert any("/tags/list" in path for _, path, _ in seen.asked)
    assert any("/blobs/" in path for _, path, _ in seen.asked)
    assert done.returncode == 5, done  # the key was taken; the sandbox that it would move out of is not there
    assert KEY not in done.stdout + done.stderr


@pytest.mark.parametrize("ill", [{}, {"secrets_stay": True}])
def test_a_runtime_that_pulls_by_itself_gets_the_token_and_that_it_can_not_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ill: dict[str, bool]
) -> None:
    own = standin.install(tmp_path / "docker", Path("/nowhere"))
    standin.Place(own).put("misbehave", ill)
    monkeypatch.setenv("PATH", f"{tmp_path / 'docker/bin'}:{os.environ['PATH']}")
    an_agent(tmp_path, driver="sbx")
    with registry(tmp_path / "registry", private=True) as host:
        publish.publish(
            publish.packed(a_kit(tmp_path)), Registry(Place.of(f"{host}/kits"), somebody), lambda _: None
        )
        config.put(Paths.from_env(), "registry", f"{host}/kits")
        done = subprocess.run(
            [sys.executable, "-m", "troupe_tasks", "upgrade", "jane"], cwd=ROOT, capture_output=True,
            input=f"{USER}:{TOKEN}\n", encoding="utf-8", timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done
    assert "which is the newest" in done.stdout
    assert ("stays with troupe" in done.stderr) == bool(ill)
    kept = [(one["scope"], one["name"]) for one in standin.Place(own).get("secrets", [])]
    assert kept == ([] if ill else [("host-only", host)])
    if not ill:
        assert (own / "password-host-only").read_text(encoding="utf-8") == TOKEN
    assert TOKEN not in (own / "calls.log").read_text(encoding="utf-8") + done.stdout + done.stderr
