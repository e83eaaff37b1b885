from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from troupe_tasks import resources
from troupe_tasks.egress.policy import HostRule
from troupe_tasks.errors import NotReady
from troupe_tasks.kits import local
from troupe_tasks.kits.services import Service
from troupe_tasks.kits.settings import address_host, settle

KIT = local.find("hermes")
PLAIN: dict[str, Any] = {
    "name": "files", "line": "A key.", "required": False, "variable": "FILES_KEY", "hosts": ["api.example.org"],
    "place": {"form": "query", "name": "key"}, "stand_in": "k-{letters:32}",
}  # fmt: skip


def service(**changed: Any) -> Service:
    return Service.model_validate_json(json.dumps({**PLAIN, **changed}))


def test_each_provider_asks_for_its_own_key_and_an_optional_one() -> None:
    for provider in ("openrouter", "anthropic", "openai"):
        settings = settle(KIT.settings, {"provider": provider})
        found = [one for one in KIT.services if one.applies(settings)]
        assert [one.name for one in found] == [provider, "github"]
        assert [one.required for one in found] == [True, False]


def test_the_host_of_an_address_is_where_its_key_goes() -> None:
    settings = settle(
        KIT.settings, {"provider": "other", "address": "https://M.Example.org/v1", "model": "m"}
    )
    model = next(one for one in KIT.services if one.applies(settings))
    rule = model.rule(settings, model.new_stand_in())
    assert rule.hosts == ("m.example.org",)
    assert rule.model_provider


_SIGNS = st.text("ab-.*1", min_size=1, max_size=12)
_HOSTS = st.builds(
    "{}.{}".format, _SIGNS, st.sampled_from(["example.org", "lan", "home.arpa", "com", "example.test"])
)


@given(st.lists(_HOSTS, min_size=1, max_size=17), st.integers(24, 400), st.booleans())
@example(["a.example.org"] * 15, 200, True)
@example(["a.example.org"] * 16, 24, True)
def test_what_a_kit_may_declare_the_broker_takes(hosts: list[str], long: int, from_setting: bool) -> None:
    try:
        one = service(
            hosts=hosts, stand_in=f"{{letters:{long}}}", **({"hosts_from": "address"} if from_setting else {})
        )
    except ValidationError:
        return
    rule = one.rule({"address": "https://models.example.org/v1"}, one.new_stand_in())
    assert len(rule.hosts) == len(hosts) + from_setting


@given(_HOSTS)
@example("llm.lan")
def test_an_address_that_is_taken_is_one_that_the_broker_takes(host: str) -> None:
    try:
        found = address_host(f"https://{host}/v1")
    except ValueError:
        return
    assert HostRule(host=found, origin="a setting").covers(found, 443)


def test_a_stand_in_looks_like_a_key_and_is_never_the_same() -> None:
    for one in KIT.services:
        made = {one.new_stand_in() for _ in range(50)}
        assert len(made) == 50
        head = one.stand_in.partition("{")[0]
        assert all(text.startswith(head) and "{" not in text and len(text) <= 200 for text in made)
    assert len(next(one for one in KIT.services if one.name == "openrouter").new_stand_in()) == 73


@pytest.mark.parametrize(
    ("off", "where"),
    [
        ({"hosts": []}, "neither hosts"),
        ({"hosts": ["10.0.0.1"]}, "hosts.0"),
        ({"hosts": ["https://a.example.org"]}, "hosts.0"),
        ({"hosts_from": "model"}, "https-address"),
        ({"hosts_from": "nothing"}, "https-address"),
        ({"when": {"setting": "nothing", "value": "x"}}, "when"),
        ({"stand_in": "sk-{hex:8}"}, "random"),
        ({"stand_in": "sk-{hex:32}{oops}"}, "brace"),
        ({"stand_in": "sk {hex:32}"}, "stand_in"),
        ({"stand_in": "sk-{hex:300}"}, "at most 200"),
        ({"hosts": ["printer.lan"]}, "one network only"),
        ({"hosts": ["a-.example.org"]}, "hosts.0"),
        ({"variable": "PATH=x"}, "variable"),
        ({"variable": "LD PRELOAD"}, "variable"),
        ({"place": {"form": "body"}}, "place.form"),
        ({"place": {"form": "header"}}, "place"),
        ({"required": "yes"}, "required"),
        ({"name": "../x"}, "name"),
        ({"line": "\x1b[2J"}, "line"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_service_that_is_off_is_refused_naming_the_place(
    tmp_path: Path, off: dict[str, Any], where: str
) -> None:
    kit = tmp_path / "kits" / "hermes"
    shutil.copytree(resources.kits_dir() / "hermes", kit)
    (kit / "services.json").write_text(json.dumps({"services": [{**PLAIN, **off}]}), encoding="utf-8")
    with pytest.raises(NotReady, match=where):
        local.find("hermes", kit.parent)


def test_two_services_of_one_name_are_refused(tmp_path: Path) -> None:
    kit = tmp_path / "kits" / "hermes"
    shutil.copytree(resources.kits_dir() / "hermes", kit)
    (kit / "services.json").write_text(json.dumps({"services": [PLAIN, PLAIN]}), encoding="utf-8")
    with pytest.raises(NotReady, match="one name"):
        local.find("hermes", kit.parent)


def test_a_place_is_what_the_kit_says() -> None:
    assert service().rule({}, "k-" + "a" * 32).place.name == "key"
