"""`troupe kit`, as a person and as a script use it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.registries import TOKEN, USER, a_kit, needs_registry, registry
from troupe_tasks.kits import archive, publish

ROOT = Path(__file__).parents[2]


def troupe(*args: str, input: str = "") -> subprocess.CompletedProcess[str]:  # noqa: A002
    return subprocess.run(
        [sys.executable, "-m", "troupe_tasks", *args], cwd=ROOT, input=input, capture_output=True, encoding="utf-8",
        timeout=60, check=False,
    )  # fmt: skip


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    return a_kit(tmp_path)


@pytest.fixture
def private(tmp_path: Path) -> Iterator[str]:
    with registry(tmp_path / "registry", private=True) as host:
        yield f"{host}/kits"


def test_pack_writes_the_archive_and_tells_the_digest(kit: Path, tmp_path: Path) -> None:
    done = troupe("kit", "pack", str(kit), "--output", str(tmp_path / "out.tar"), "--json")
    artifact = publish.packed(kit)
    assert json.loads(done.stdout) == {
        "type": "mime", "version": "1.2.3", "digest": artifact.digest, "file": str(tmp_path / "out.tar"),
        "bytes": len(artifact.layer),
    }  # fmt: skip
    assert (tmp_path / "out.tar").read_bytes() == artifact.layer == archive.pack(kit)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("kit", "pack", "/nowhere"), "there is no kit in"),
        (("kit", "publish", "/nowhere", "registry.example.com"), "there is no kit in"),
        (("kit", "pull", "mime"), "no registry is set"),
        (("kit", "inspect", "mime"), "no kit of type"),
        (("kit", "inspect", "hermes:9.9.9"), "there is no hermes 9.9.9 here"),
    ],
)
def test_what_can_not_be_done_is_told(args: tuple[str, ...], told: str) -> None:
    done = troupe(*args)
    assert done.returncode == 2
    assert told in done.stderr


def test_publish_refuses_a_place_that_is_none(kit: Path) -> None:
    done = troupe("kit", "publish", str(kit), "https://registry.example.com/kits")
    assert done.returncode == 2
    assert "no value for registry" in done.stderr


def test_publish_to_a_place_that_does_not_answer_names_that_place(kit: Path) -> None:
    done = troupe("kit", "publish", str(kit), "127.0.0.1:1/kits")
    assert done.returncode == 4
    assert "127.0.0.1:1/kits" in done.stderr.splitlines()[-1]
    assert "config get registry" not in done.stderr


def test_inspect_shows_a_kit_of_the_checkout_whole() -> None:
    done = troupe("kit", "inspect", "hermes")
    assert done.returncode == 0
    for word in ("services", "settings", "2 GiB memory", "pypi.org:443", "one of troupe's own"):
        assert word in done.stdout
    shown = json.loads(troupe("kit", "inspect", "hermes", "--json").stdout)
    assert {"name", "line", "required", "hosts", "when"} == set(shown["services"][0])
    openai = next(one for one in shown["services"] if one["name"] == "openai")
    assert openai["when"] == {"setting": "provider", "value": "openai"}
    assert "openai (required, if provider is openai) to api.openai.com" in done.stdout
    assert "if provider is other): " in done.stdout.partition("settings")[2]
    assert "  provider (choice, openrouter by default): " in done.stdout
    assert shown["digest"] is None


@needs_registry
def test_a_script_gives_the_token_on_stdin_and_nothing_keeps_it(
    kit: Path, private: str, own_home: Path
) -> None:
    token = f"{USER}:{TOKEN}\n"
    source = kit / "kit.toml"
    source.write_text(
        source.read_text(encoding="utf-8").replace("a kit for", "a\u202ekit for"), encoding="utf-8"
    )
    done = troupe("kit", "publish", str(kit), private, "--json", input=token)
    assert done.returncode == 0, done.stderr
    digest = json.loads(done.stdout)["digest"]
    assert troupe("config", "set", "registry", private).returncode == 0
    refused = troupe("kit", "pull", "mime")
    assert refused.returncode == 2
    assert "lets nobody in without a token" in refused.stderr
    done = troupe("kit", "pull", "mime", "--json", input=token)
    assert json.loads(done.stdout)["digest"] == digest
    listed = troupe("kit", "list", input=token)
    assert f"mime  1.2.3    latest  yes     {digest}" in listed.stdout
    inspected = troupe("kit", "inspect", "mime:1.2.3")  # here already: nobody is asked
    assert digest in inspected.stdout
    assert "a\\u202ekit for" in inspected.stdout
    assert all(TOKEN not in text for one in (done, listed, inspected) for text in (one.stdout, one.stderr))
    kept = [path for path in own_home.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert not kept


@needs_registry
def test_a_person_is_asked_hidden(kit: Path, private: str) -> None:
    near, far = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "troupe_tasks", "kit", "publish", str(kit), private], cwd=ROOT, stdin=far, stdout=far,
        stderr=far, start_new_session=True, env={**os.environ, "TERM": "dumb"},
    )  # fmt: skip
    os.close(far)
    shown = b""
    while b"(hidden): " not in shown:
        shown += os.read(near, 4096)
    os.write(near, f"{USER}:{TOKEN}\n".encode())
    try:
        while True:
            shown += os.read(near, 4096)
    except OSError:  # it has ended, and with it the terminal
        pass
    os.close(near)
    assert process.wait(timeout=60) == 0, shown
    assert b"latest is 1.2.3" in shown
    assert TOKEN.encode() not in shown
