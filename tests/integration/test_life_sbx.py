"""The life of a real Hermes agent in a sandbox of the sbx driver: on the stand-in, or on this machine's own sbx."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import own_sbx
from tests.contract.standin_sbx import sbx as standin
from tests.integration.house import House, wait_until
from tests.own_sbx import Sbx
from troupe_tasks import record as records
from troupe_tasks.kits import image, local
from troupe_tasks.sandbox.sbx import template

NAME, ID = "Docker's Own", "docker-s-own"
SAYS = "Rehearsal reply to"
# The doctor is passed over: the stand-in does without KVM, and of the machine's own sbx it was asked before. All else
# is the command.
_CREATE = """\
import sys
from troupe_tasks.__main__ import main
from troupe_tasks.host import kvm
from troupe_tasks.operations import readiness
readiness.refuse_unready = lambda house: None
kvm.check = lambda: kvm.Kvm(kvm.KvmState.WORKS, "as the test says")
sys.argv[0] = "troupe"
main()
"""

pytestmark = [
    pytest.mark.network, pytest.mark.real_home, pytest.mark.timeout(400), pytest.mark.root, pytest.mark.own_sbx,
]  # fmt: skip


@pytest.fixture(scope="module")
def docker(house: House, request: pytest.FixtureRequest) -> Iterator[Sbx]:
    """Yield the sbx of this house's troupe, signed in: Docker's installer puts it there; it is left as it was."""
    programs = house.home / ".docker/sbx/bin"
    sbx = own_sbx.wrapped(programs) if own_sbx.is_asked(request.config) else _standin(house, programs)
    store = own_sbx.sign_in(house.home / ".config")
    with pytest.MonkeyPatch.context() as patch, sbx.left_as_it_was():
        patch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        yield sbx
    for part in (house.home / ".docker", store):
        shutil.rmtree(part)


def _standin(house: House, programs: Path) -> Sbx:
    runsc = house.paths.tools / "runsc"
    if not runsc.exists():
        pytest.skip("the stand-in for sbx needs gVisor")
    folder = standin.install(house.home / ".docker", runsc.resolve(), programs="sbx/bin")
    built = image.find_image(local.find("hermes", house.code / "kits"), house.paths)
    assert built is not None
    place = standin.Place(folder)
    place.put("templates", {template.tag(built.path): str(built.path)})
    place.put("policy", {"default": "balanced"})
    return Sbx(programs / "sbx")


@pytest.fixture(scope="module")
def alive(house: House, docker: Sbx) -> Iterator[House]:
    """Yield the house with the agent in it, which is deleted without a trace at the end."""
    house.asked_for[ID] = NAME
    words = [
        "create",
        "hermes",
        "--name",
        NAME,
        "--driver",
        "sbx",
        "--rehearsal",
        "--cpu",
        "1",
        "--memory",
        "2",
    ]
    done = subprocess.run(
        [sys.executable, "-c", _CREATE, *words, "--storage", "4"], env=house.env(), cwd="/", capture_output=True,
        encoding="utf-8", stdin=subprocess.DEVNULL, timeout=380, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert SAYS in done.stdout
    assert house.troupe("config", "set", "reserve", "1").status == 0
    yield house
    house.delete(NAME)


def sandboxes(docker: Sbx) -> list[str]:
    """Return the names of troupe's sandboxes of this agent, as sbx lists them."""
    found = json.loads(docker.call(["ls", "--json"]))["sandboxes"]
    return [one["name"] for one in found if one["name"].startswith(f"troupe-{ID}")]


def state(house: House) -> str:
    found = json.loads(house.troupe("list", "--json").out)
    return str(next(agent["state"] for agent in found if agent["id"] == ID))


@pytest.mark.chaos
def test_it_moves_with_all_it_has_into_a_sandbox_of_another_name(alive: House, docker: Sbx) -> None:
    (before,) = sandboxes(docker)
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
    (after,) = sandboxes(docker)
    assert after != before
    ran = driver.run(record.sandbox, ["cat", "/workspace/report.md", "/state/kept"], deadline_s=60)
    assert ran.stdout == b"report\nmemory\n"


def test_it_runs_is_talked_to_stopped_and_started_and_remembers(alive: House) -> None:
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


@pytest.mark.chaos
def test_what_it_had_comes_back_from_a_backup(alive: House) -> None:
    driver = alive.rooms.driver("sbx")
    wait_until(lambda: state(alive) == "running")
    where = records.load(alive.paths, ID).sandbox
    driver.run(where, ["sh", "-c", "echo worth keeping > /workspace/word"], deadline_s=60)
    done = alive.troupe("backup", ID)
    assert done.status == 0, done
    driver.run(where, ["rm", "/workspace/word"], deadline_s=60)
    done = alive.troupe("restore", ID, "--yes")
    assert done.status == 0, done
    where = records.load(alive.paths, ID).sandbox
    assert driver.run(where, ["cat", "/workspace/word"], deadline_s=60).stdout == b"worth keeping\n"


def test_what_sbx_does_not_list_is_missing_and_not_deleted(
    alive: House, docker: Sbx, request: pytest.FixtureRequest
) -> None:
    if own_sbx.is_asked(request.config):
        pytest.skip("the machine's own sbx is not asked to forget its sandboxes")
    assert alive.troupe("stop", ID).status == 0
    place = standin.Place(docker.program.parents[2] / "sbx-state")
    place.put("misbehave", {"forget": True})
    assert state(alive) == "missing"
    refused = alive.troupe("delete", ID, "--yes-i-mean", NAME)
    assert refused.status == 5, refused
    assert "sbx does not list it" in refused.err
    place.put("misbehave", {})
    assert len(sandboxes(docker)) == 1
