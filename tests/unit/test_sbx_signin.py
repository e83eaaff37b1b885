"""Whether sbx is signed in, as its store tells: nothing but a whole entry is a sign-in."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from troupe_tasks.sandbox.sbx import signin
from troupe_tasks.sandbox.sbx.signin import SignIn, Standing

FACTS = b'{"default": "true"}'


def store(
    home: Path, name: str = "docker/auth/hub/jo", facts: bytes | None = FACTS, sealed: bytes | None = b"age"
) -> Path:
    folder = home / ".config/com.docker.sandboxes/sandboxes-auth" / base64.b64encode(name.encode()).decode()
    folder.mkdir(parents=True)
    if facts is not None:
        (folder / "metadata.json").write_bytes(facts)
    if sealed is not None:
        (folder / "secretpass").write_bytes(sealed)
    return folder


def read(home: Path, **more: str) -> SignIn:
    return signin.read({"HOME": str(home), **more})


def test_a_whole_entry_is_a_sign_in(tmp_path: Path) -> None:
    store(tmp_path, "docker/other/thing")
    store(tmp_path)
    assert read(tmp_path) == SignIn(Standing.IN, "jo")
    assert read(tmp_path, XDG_CONFIG_HOME="relative") == SignIn(Standing.IN, "jo")
    assert read(tmp_path, XDG_CONFIG_HOME=str(tmp_path / "elsewhere")).standing is Standing.OUT


@pytest.mark.parametrize(
    "place",
    [
        "share/dbus-1/services/org.freedesktop.secrets.service", "share/dbus-1/services/org.kde.kwalletd6.service",
        ".local/share/dbus-1/services/org.freedesktop.secrets.service",
        "own/dbus-1/services/org.freedesktop.secrets.service",
        "run/keyring/control", "run/kwallet5.socket",
    ],
)  # fmt: skip
def test_without_a_store_it_is_in_the_keyring_where_there_can_be_one(tmp_path: Path, place: str) -> None:
    places = {
        "XDG_DATA_DIRS": f"relative:{tmp_path}/nothing:{tmp_path}/share",
        "XDG_RUNTIME_DIR": f"{tmp_path}/run",
    }
    bus = {"DBUS_SESSION_BUS_ADDRESS": "unix:path=/x", **places}
    if place.startswith("own"):
        bus["XDG_DATA_HOME"] = f"{tmp_path}/own"
    assert read(tmp_path, **bus).standing is Standing.OUT
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).touch()
    assert read(tmp_path, **bus).standing is Standing.KEYRING
    assert read(tmp_path, **places).standing is Standing.OUT
    store(tmp_path)
    assert read(tmp_path, **bus).standing is Standing.IN


def test_without_a_whole_entry_it_is_out(tmp_path: Path) -> None:
    assert read(tmp_path).standing is Standing.OUT
    store(tmp_path, "docker/auth/hub/")
    store(tmp_path, "docker/auth/hub")
    assert read(tmp_path).standing is Standing.OUT


@pytest.mark.parametrize(
    "facts",
    [None, b"", b"null", b"{}", b"[]", b'"jo"', b"1", b'{"default": null}', b'{"default": {}}', b"{", b"\xff",
     b"[" * 60000, b" " * 70000],
    ids=["none", "empty", "null", "nothing", "list", "text", "number", "null within", "object", "cut", "bytes", "deep",
         "long"],
)  # fmt: skip
def test_damaged_facts_are_no_sign_in(tmp_path: Path, facts: bytes | None) -> None:
    store(tmp_path, facts=facts)
    found = read(tmp_path)
    assert (found.standing, found.user) == (Standing.DAMAGED, "jo")
    assert found.why


@pytest.mark.parametrize("sealed", [None, b""], ids=["none", "empty"])
def test_facts_without_a_secret_are_no_sign_in(tmp_path: Path, sealed: bytes | None) -> None:
    store(tmp_path, sealed=sealed)
    assert read(tmp_path).standing is Standing.DAMAGED


def test_no_link_is_followed(tmp_path: Path) -> None:
    folder = store(tmp_path, facts=None)
    (tmp_path / "elsewhere.json").write_bytes(FACTS)
    (folder / "metadata.json").symlink_to(tmp_path / "elsewhere.json")
    assert read(tmp_path).standing is Standing.DAMAGED
    (folder / "metadata.json").unlink()
    os.mkfifo(folder / "metadata.json")
    assert read(tmp_path).standing is Standing.DAMAGED
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert read(tmp_path).standing is Standing.OUT


def test_one_whole_entry_beside_a_damaged_one_is_enough(tmp_path: Path) -> None:
    store(tmp_path, "docker/auth/hub/al", facts=b"null")
    store(tmp_path)
    assert read(tmp_path) == SignIn(Standing.IN, "jo")


@given(st.binary(max_size=200))
def test_no_bytes_in_it_raise(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as home:
        store(Path(home), facts=data)
        assert read(Path(home)).standing in {Standing.IN, Standing.DAMAGED}
