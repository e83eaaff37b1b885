"""Agents from a kit in a real registry: pinned when they are created, whatever happens to the registry later."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import share
from tests.integration.house import House, wait_until
from tests.registries import needs_registry, registry
from troupe_tasks.kits import image, local
from troupe_tasks.kits.model import Kit

pytestmark = needs_registry
VERSIONS = ("0.8.0", "0.9.0")


@pytest.fixture
def versions(house: House, tmp_path: Path) -> Iterator[dict[str, Kit]]:
    """Yield two versions of the kit probe, each with an image, which is the one that they all share."""
    built = image.find_image(local.find("hermes", house.code / "kits"), house.paths)
    assert built is not None
    found = {}
    for version in VERSIONS:
        folder = shutil.copytree(house.code / "kits" / "probe", tmp_path / version / "probe")
        source = folder / "kit.toml"
        text = source.read_text(encoding="utf-8")
        source.write_text(text.replace('version = "0.2.0"', f'version = "{version}"'), encoding="utf-8")
        found[version] = local.read(folder, name="probe")
        assert found[version].version == version
        share(built, found[version], house.paths)
    yield found
    house.troupe("config", "unset", "registry")


def pin(house: House, agent: str) -> tuple[str, str]:
    kit = json.loads(house.troupe("status", agent, "--json").out)["record"]["kit"]
    return kit["version"], kit["digest"]


def test_agents_are_pinned_to_the_kit_that_they_were_created_from(
    swept: House, versions: dict[str, Kit], tmp_path: Path
) -> None:
    house, (old, new) = swept, VERSIONS
    with registry(tmp_path / "registry") as host:

        def publish(version: str) -> str:
            done = house.troupe("kit", "publish", str(versions[version].folder), f"{host}/kits", "--json")
            assert done.status == 0, done
            return str(json.loads(done.out)["digest"])

        first = publish(old)
        assert house.troupe("config", "set", "registry", f"{host}/kits").status == 0
        cut = house.start("create", "probe", "--name", "Old Hand", "--rehearsal")
        wait_until(lambda: any(house.paths.receipts("old-hand").glob("*-create-reserve.json")))
        os.killpg(cut.pid, signal.SIGKILL)
        cut.communicate()
        begun = json.loads(next(house.paths.receipts("old-hand").glob("*-create-begin.json")).read_bytes())
        assert begun["decided"]["inputs"]["digest"] == first

        second = publish(new)
        house.create("New Hand")
        assert pin(house, "new-hand") == (new, second)

    house.create("Old Hand")  # goes on, though latest has moved and the registry is gone
    assert pin(house, "old-hand") == (old, first)
    assert f"pinned     {first}" in house.troupe("status", "old-hand").out
    assert house.troupe("chat", "old-hand", "still there?").status == 0
    refused = house.troupe("create", "probe", "--name", "Too Late", "--rehearsal")
    assert refused.status == 4, refused
    assert "can't be reached" in refused.err
    assert not house.traces("too-late")
