from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from troupe_tasks.errors import NotReady
from troupe_tasks.kits import compose, local
from troupe_tasks.kits.compose import StateFile
from troupe_tasks.kits.settings import settle

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


def rehearsal_files(soul: bytes | None = None) -> tuple[StateFile, ...]:
    return compose.state_files(KIT, variables={"REHEARSAL_API_KEY": "sk-1"}, settings=None, soul=soul)


def test_the_agents_files_are_private_and_hold_the_stand_in_once() -> None:
    files = rehearsal_files()
    assert {file.mode & 0o077 for file in files} == {0}
    assert [file.path for file in files if b"sk-1" in file.data] == ["hermes/.env"]
    assert b'"ver": "0.19.0"' in files[2].data


def test_a_soul_of_ones_own_replaces_the_kits() -> None:
    files = {file.path: file.data for file in rehearsal_files(soul=b"I am Jane.")}
    assert files["hermes/SOUL.md"] == b"I am Jane."


@pytest.mark.parametrize(
    ("given", "address", "variable"),
    [
        ({}, "https://openrouter.ai/api/v1", "MODEL_API_KEY"),
        ({"provider": "anthropic"}, "https://api.anthropic.com/v1", "MODEL_API_KEY"),
        ({"provider": "other", "address": "https://m.example.org/v1/", "model": "m"}, "https://m.example.org/v1",
         "MODEL_API_KEY"),
    ],
)  # fmt: skip
def test_hermes_is_told_which_model_it_uses(given: dict[str, str], address: str, variable: str) -> None:
    settled = settle(KIT.settings, given)
    files = compose.state_files(KIT, variables={}, settings=settled)
    config = json.loads(next(file.data for file in files if file.path == "hermes/config.yaml"))
    provider = config["providers"]["main"]
    assert (provider["base_url"], provider["key_env"]) == (address, variable)
    assert config["model"] == {
        "provider": "custom:main", "default": settled["model"], "context_length": 131072,
    }  # fmt: skip


@pytest.mark.parametrize("rehearsal", [True, False])
def test_the_environment_holds_no_key(rehearsal: bool) -> None:
    assert not any("sk-" in value for value in compose.environment(KIT, rehearsal=rehearsal).values())


def test_an_agent_with_keys_trusts_the_brokers_authority_and_no_other() -> None:
    env = compose.environment(KIT, rehearsal=False)
    assert env["SSL_CERT_FILE"] == env["REQUESTS_CA_BUNDLE"] == "/run/troupe/egress/ca.pem"
    assert env["HERMES_MANAGED_DIR"] == "/etc/hermes/live"
    assert "SSL_CERT_FILE" not in compose.environment(KIT, rehearsal=True)


def test_both_spellings_of_the_proxy_variables_are_set() -> None:
    env = compose.environment(KIT, rehearsal=True)
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


def test_the_archive_lies_below_the_state_and_is_of_today() -> None:
    files = rehearsal_files()
    with tarfile.open(fileobj=io.BytesIO(compose.archive(files))) as tar:
        # Hermes leaves files from before 1980 out of its backups, and calls them complete all the same.
        assert all(abs(entry.mtime - time.time()) < 3600 for entry in tar.getmembers())
    with tarfile.open(fileobj=io.BytesIO(compose.archive(files))) as tar:
        assert all(not name.startswith(("/", "..")) for name in tar.getnames())


def test_a_lock_without_hermes_is_told(tmp_path: Path) -> None:
    (tmp_path / "requirements.lock").write_text("h11==1\n", encoding="ascii")
    with pytest.raises(NotReady, match="hermes-agent"):
        compose.hermes_version(KIT.model_copy(update={"folder": tmp_path}))
