"""Agents from a kit in a real registry: pinned when they are created, whatever happens to the registry later."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.house import House, wait_until
from tests.registries import needs_registry, registry
from troupe_tasks.kits import local
from troupe_tasks.kits.model import Kit

pytestmark = needs_registry
VERSIONS = ("0.8.0", "0.9.0")


@pytest.fixture
def versions(house: House, tmp_path: Path) -> Iterator[dict[str, Kit]]:
    """Yield two versions of the kit probe, whose image is the same."""
    found = {}
    for version in VERSIONS:
        folder = shutil.copytree(house.code / "kits" / "probe", tmp_path / version / "probe")
        source = folder / "kit.toml"
        text = source.read_text(encoding="utf-8")
        source.write_text(text.replace('version = "0.2.0"', f'version = "{version}"'), encoding="utf-8")
        found[version] = local.read(folder, name="probe")
        assert found[version].version == version
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


@pytest.mark.chaos
def test_an_agent_is_upgraded_to_what_the_registry_has_of_its_major(
    swept: House, versions: dict[str, Kit], tmp_path: Path
) -> None:
    house, (old, new) = swept, VERSIONS
    assert house.troupe("config", "set", "reserve", "1").status == 0
    with registry(tmp_path / "registry") as host:
        assert house.troupe("kit", "publish", str(versions[old].folder), f"{host}/kits").status == 0
        assert house.troupe("config", "set", "registry", f"{host}/kits").status == 0
        house.create("Riser")
        assert pin(house, "riser")[0] == old
        same = house.troupe("upgrade", "riser")
        assert same.status == 0, same
        assert "is left as it is" in same.out
        done = house.troupe("kit", "publish", str(versions[new].folder), f"{host}/kits", "--json")
        second = json.loads(done.out)["digest"]
        risen = house.troupe("upgrade", "riser")
        assert risen.status == 0, risen
        assert pin(house, "riser") == (new, second)
    assert house.troupe("upgrade", "riser").status == 4  # the registry is gone, the agent is not
    assert house.troupe("chat", "riser", "up?").status == 0
