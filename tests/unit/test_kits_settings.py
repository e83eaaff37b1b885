from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from troupe_tasks.errors import UsageError
from troupe_tasks.kits import local
from troupe_tasks.kits.settings import Setting, address_host, settle

DECLARED = local.find("hermes").settings
OTHER = {"provider": "other", "address": "https://models.example.org/v1", "model": "m"}


def test_what_is_not_given_has_a_default() -> None:
    assert settle(DECLARED, {}) == {
        "provider": "openrouter", "model": "openrouter/auto", "context-length": "131072",
    }  # fmt: skip


def test_a_default_follows_an_earlier_setting() -> None:
    assert settle(DECLARED, {"provider": "anthropic"})["model"].startswith("claude-")


@pytest.mark.parametrize(
    ("given_", "what"),
    [
        ({"colour": "red"}, "colour"),
        ({"\x1b[2J": "x"}, r"\\x1b"),
        ({"provider": "nobody"}, "provider"),
        ({"provider": "other", "model": "m"}, "address"),
        ({"provider": "other", "address": OTHER["address"]}, "model"),
        ({"address": OTHER["address"]}, "means nothing here"),
        ({"context-length": "63999"}, "context-length"),
        ({"context-length": "1e9"}, "context-length"),
        ({"context-length": "١٣١٠٧٢"}, "context-length"),
        ({"model": ""}, "model"),
        ({"model": "-rf"}, "model"),
        ({"model": "a b"}, "model"),
        ({"model": "m" * 201}, "model"),
        ({"model": "a\nb"}, "model"),
    ],
)
def test_what_is_off_is_refused_and_named(given_: dict[str, str], what: str) -> None:
    with pytest.raises(UsageError, match=what) as told:
        settle(DECLARED, given_)
    assert "\x1b" not in str(told.value)


@pytest.mark.parametrize(
    "text",
    [
        "http://models.example.org/v1", "https://10.0.0.1/v1", "https://[::1]/v1", "https://localhost/v1",
        "https://models.example.org:8443/v1", "https://user:key@models.example.org/v1",
        "https://models.example.org/v1?key=x", "https://models.example.org/v1#x", "models.example.org",
        "https://", "https:///v1", "https://models.example.org/../x y", "https://0x7f.1/v1",
    ],
)  # fmt: skip
def test_an_address_is_plain_https_to_a_name(text: str) -> None:
    with pytest.raises(UsageError, match="address"):
        settle(DECLARED, {**OTHER, "address": text})


def test_an_address_loses_its_last_slash_and_its_host_is_lower_case() -> None:
    assert settle(DECLARED, {**OTHER, "address": "https://Models.Example.org/v1/"})["address"].endswith("/v1")
    assert address_host("https://Models.Example.org/v1") == "models.example.org"


@given(st.dictionaries(st.sampled_from([*(one.name for one in DECLARED), "x"]), st.text(max_size=30)))
def test_settled_settings_settle_to_themselves(given_: dict[str, str]) -> None:
    try:
        settled = settle(DECLARED, given_)
    except UsageError:
        return
    assert settle(DECLARED, settled) == settled


@pytest.mark.parametrize(
    "off",
    [
        {"form": "choice"},
        {"form": "word", "choices": ["a"]},
        {"form": "word", "default": "a b"},
        {"form": "word", "default_by": "provider"},
        {"form": "number", "default": "-1"},
        {"form": "secret"},
        {"form": "word", "ask": "a\x1bb"},
    ],
)
def test_a_setting_that_is_off_is_refused(off: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Setting.model_validate({"name": "x", "ask": "What?", **off})
