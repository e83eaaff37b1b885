"""The whole life of a real Hermes agent in a sandbox of the sbx driver, on the stand-in for Docker's program."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.standin_sbx import sbx as standin
from tests.integration.house import House, wait_until
from troupe_tasks import record as records
from troupe_tasks.kits import image, local
from troupe_tasks.sandbox.sbx import template

NAME, ID = "Docker's Own", "docker-s-own"
SAYS = "Rehearsal reply to"
# `create` would refuse for want of KVM, which the stand-in does without; what it does after that is this.
_CREATE = """\
import sys
from troupe_tasks import sizes
from troupe_tasks.kits import local
from troupe_tasks.operations.create import Wish, create
from troupe_tasks.operations.house import House
from troupe_tasks.paths import Paths
kit = local.find("hermes")
wanted = sizes.Wanted(cpus=1, memory_mib=2048, storage_mib=2048)
wish = Wish(sys.argv[1], sys.argv[2], kit, rehearsal=True, wanted=wanted)
record, result = create(House(Paths.from_env(), wanted="sbx"), wish, finish="again", told=print)
print(record.driver, record.isolation, result.passed, result.reply, result.cause)
"""

pytestmark = [pytest.mark.network, pytest.mark.real_home, pytest.mark.timeout(400), pytest.mark.root]


@pytest.fixture(scope="module")
def docker(house: House) -> Iterator[Path]:
    """Yield the stand-in's folder; sbx is installed where Docker's installer puts it, and signed in."""
    runsc = house.paths.tools / "runsc"
    if not runsc.exists():
        pytest.skip("the stand-in for sbx needs gVisor")
    folder = standin.install(house.home, runsc.resolve(), programs=".docker/sbx/bin")
    place = standin.Place(folder)
    built = image.find_image(local.find("hermes", house.code / "kits"), house.paths)
    assert built is not None
    place.put("templates", {template.tag(built.path): str(built.path)})
    place.put("policy", {"default": "balanced"})
    account = house.home / ".config/com.docker.sandboxes" / base64.b64encode(b"docker/auth/hub/jo").decode()
    account.mkdir(parents=True)
    (account / "metadata.json").write_text('{"user": "jo"}')
    (account / "secretpass").write_text("sealed")
    yield folder
    for part in (folder, house.home / ".docker", account.parent):
        shutil.rmtree(part)


@pytest.fixture(scope="module")
def alive(house: House, docker: Path) -> Iterator[House]:
    """Yield the house with the agent in it, which is deleted without a trace at the end."""
    house.asked_for[ID] = NAME
    done = subprocess.run(
        [sys.executable, "-c", _CREATE, ID, NAME], env=house.env(), cwd="/", capture_output=True, encoding="utf-8",
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"sbx kvm True {SAYS}" in done.stdout
    yield house
    house.delete(NAME)
    assert standin.Place(docker).sandboxes() == []


def state(house: House) -> str:
    found = json.loads(house.troupe("list", "--json").out)
    return str(next(agent["state"] for agent in found if agent["id"] == ID))


def test_it_moves_with_all_it_has_into_a_sandbox_of_another_name(
    alive: House, docker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(alive.home))  # where the program is looked for
    assert alive.troupe("config", "set", "reserve", "1").status == 0
    (before,) = standin.Place(docker).sandboxes()
    wait_until(lambda: state(alive) == "running")
    driver = alive.rooms.driver("sbx")
    driver.run(
        ID, ["sh", "-c", "echo report > /workspace/report.md; echo memory > /state/kept"], deadline_s=60
    )
    done = alive.troupe("resize", ID, "--memory", "2.5")
    assert done.status == 0, done
    assert SAYS in done.out
    record = records.load(alive.paths, ID)
    assert (record.sandbox, record.sizes.memory_mib) == (f"{ID}--1", 2560)
    (after,) = standin.Place(docker).sandboxes()
    assert after != before
    ran = driver.run(record.sandbox, ["cat", "/workspace/report.md", "/state/kept"], deadline_s=60)
    assert ran.stdout == b"report\nmemory\n"


def test_it_runs_is_talked_to_stopped_and_started_and_remembers(alive: House, docker: Path) -> None:
    wait_until(lambda: state(alive) == "running")
    shown = json.loads(alive.troupe("status", ID, "--json").out)
    assert (shown["record"]["driver"], shown["record"]["isolation"]) == ("sbx", "kvm")
    assert alive.troupe("stop", ID).status == 0
    assert state(alive) == "stopped"
    started = alive.troupe("start", ID)
    assert started.status == 0, started
    wait_until(lambda: state(alive) == "running")
    call = '[[rehearse: tool terminal {"command": "id -u; ls /state/hermes/SOUL.md"}]]'
    done = alive.troupe("chat", ID, f"Look around.\n{call}")
    assert done.status == 0, done
    assert "1000" in done.out
    assert "SOUL.md" in done.out
    assert alive.troupe("stop", ID).status == 0
    standin.Place(docker).put("misbehave", {"forget": True})
    assert state(alive) == "missing"
    refused = alive.troupe("delete", ID, "--yes-i-mean", NAME)
    assert refused.status == 5, refused
    assert "sbx does not list it" in refused.err
    standin.Place(docker).put("misbehave", {})
    assert len(standin.Place(docker).sandboxes()) == 1
