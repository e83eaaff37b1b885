from __future__ import annotations

import io
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from troupe_tasks.kits import compose, local
from troupe_tasks.kits.compose import StateFile

KIT = local.find("hermes")


def test_a_message_stays_one_argument_whatever_it_holds() -> None:
    for message in ["-rf", "--resume=x", "a b", "", "{usage}", "{message}", "=x", "'; id", "é\n"]:
        assert compose.turn(KIT, message)[-1] == f"--query={message}"
        words = compose.self_test(KIT, message)
        assert words[1:] == [f"--oneshot={message}", f"--usage-file={compose.USAGE_FILE}"]


def test_each_agent_gets_a_stand_in_of_its_own() -> None:
    keys = {compose.rehearsal_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(re.fullmatch(r"sk-rehearsal-[0-9a-f]{32}", key) for key in keys)


def test_the_agents_files_are_private_and_hold_the_key_once() -> None:
    files = compose.state_files(KIT, key="sk-rehearsal-1")
    assert {file.mode for file in files} == {0o600}
    assert [file.path for file in files if b"sk-rehearsal-1" in file.data] == ["hermes/.env"]
    assert b'"ver": "0.19.0"' in files[2].data


def test_a_soul_of_ones_own_replaces_the_kits() -> None:
    files = {file.path: file.data for file in compose.state_files(KIT, key="k", soul=b"I am Jane.")}
    assert files["hermes/SOUL.md"] == b"I am Jane."


def test_the_key_is_not_in_the_environment() -> None:
    assert not any("sk-" in value for value in compose.environment(KIT).values())


def test_both_spellings_of_the_proxy_variables_are_set() -> None:
    env = compose.environment(KIT)
    assert {env[n] for n in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy")} == {compose.PROXY}
    assert env["NO_PROXY"] == env["no_proxy"]


def test_the_archive_unpacks_with_its_modes_over_an_older_one(tmp_path: Path) -> None:
    words = [word.replace(compose.STATE, str(tmp_path)) for word in compose.UNPACK]
    for text in (b"old", b"new"):
        data = compose.archive([StateFile("hermes/.env", text)])
        subprocess.run(words, input=data, check=True, timeout=20)
    assert (tmp_path / "hermes/.env").read_bytes() == b"new"
    assert (tmp_path / "hermes/.env").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "hermes").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "home").is_dir()


def test_the_archive_is_the_same_each_time() -> None:
    files = compose.state_files(KIT, key="k")
    assert compose.archive(files) == compose.archive(files)
    with tarfile.open(fileobj=io.BytesIO(compose.archive(files))) as tar:
        assert all(not name.startswith(("/", "..")) for name in tar.getnames())


def test_a_lock_without_hermes_is_told(tmp_path: Path) -> None:
    (tmp_path / "requirements.lock").write_text("h11==1\n", encoding="ascii")
    with pytest.raises(ValueError, match="hermes-agent"):
        compose.hermes_version(KIT.model_copy(update={"folder": tmp_path}))
