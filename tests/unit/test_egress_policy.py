"""One spelling a place, and nothing beyond an agent's list."""

from __future__ import annotations

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from troupe_tasks.egress import policy as policies
from troupe_tasks.egress.policy import EgressPolicy, HostRule, decide
from troupe_tasks.egress.target import Target, absolute, authority, name
from troupe_tasks.egress.verdict import Refusal
from troupe_tasks.errors import StateUnreadable
from troupe_tasks.paths import Paths

RULES = (
    HostRule(host="api.example.org", origin="kit"),
    HostRule(host="*.cdn.example.org", ports=(80, 443), origin="kit"),
    HostRule(host="models.example.net", origin="service openrouter", model_provider=True),
)


def policy(mode: policies.Mode = "balanced", *, rehearsal: bool = False) -> EgressPolicy:
    return EgressPolicy(id="jane", rehearsal=rehearsal, mode=mode, hosts=RULES)


def granted(mode: policies.Mode, place: str, *, rehearsal: bool = False, tunnel: bool = True) -> bool:
    target = authority(place, default_port=443)
    try:
        decide(policy(mode, rehearsal=rehearsal), target, tunnel=tunnel)
    except Refusal as refusal:
        return refusal.verdict != "policy"
    return True


@pytest.mark.parametrize(
    ("mode", "place", "expected"),
    [
        ("balanced", "api.example.org:443", True),
        ("balanced", "API.Example.ORG:443", True),
        ("balanced", "api.example.org:22", False),
        ("balanced", "x.api.example.org:443", False),
        ("balanced", "a.cdn.example.org:80", True),
        ("balanced", "a.b.cdn.example.org:443", False),
        ("balanced", "cdn.example.org:443", False),
        ("balanced", "evilapi.example.org:443", False),
        ("balanced", "8.8.8.8:443", False),
        ("locked", "models.example.net:443", True),
        ("locked", "api.example.org:443", False),
        ("open", "anything.example.com:443", True),
        ("open", "anything.example.com:22", False),
        ("open", "8.8.8.8:443", True),
        ("open", "[2606:4700:4700::1111]:443", True),
        ("open", "metadata.google.internal:80", False),
        ("open", "printer.local:80", False),
    ],
)
def test_the_policy_decides_by_host_and_port(mode: policies.Mode, place: str, *, expected: bool) -> None:
    assert granted(mode, place) is expected


@pytest.mark.parametrize("mode", ["balanced", "locked", "open"])
def test_the_rehearsal_model_is_for_rehearsal_agents_only(mode: policies.Mode) -> None:
    place = f"{policies.REHEARSAL_HOST}:80"
    assert granted(mode, place, rehearsal=True, tunnel=False)
    assert not granted(mode, place, rehearsal=True, tunnel=True)
    assert not granted(mode, place, rehearsal=False, tunnel=False)


@pytest.mark.parametrize(
    "text",
    [
        "0x7f.1:443", "2130706433:443", "127.1:443", "0177.0.0.1:443", "127.0.0.0x1:443", "1.2.3.4.5:443",
        "localhost:443", "example:443", "example.org.:443", "-a.example.org:443", "a-.example.org:443",
        "ex ample.org:443", "user@example.org:443", "example.org:0", "example.org:65536", "example.org:443x",
        "example.org:", "[::1%25lo]:443", "[::1:443", "exam_ple.org:443", "ex\u0430mple.org:443", "a..b.org:443", "",
        "*.example.org:443", f"{'a' * 64}.example.org:443", "example.org\r\nX: y:443", "[1.2.3.4]:443",
    ],
)  # fmt: skip
def test_odd_spellings_of_a_place_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        authority(text, default_port=None)


@pytest.mark.parametrize(
    "text", ["https://a.example.org/", "ftp://a.example.org/", "//a.example.org/", "/x", "*"]
)
def test_only_plain_http_has_an_absolute_form(text: str) -> None:
    with pytest.raises(ValueError):
        absolute(text)


def test_a_path_keeps_its_query_and_an_empty_one_becomes_a_slash() -> None:
    assert absolute("http://a.example.org?x=1") == Target("a.example.org", 80, "/?x=1")
    assert absolute("http://a.example.org:8080") == Target("a.example.org", 8080, "/")


@given(st.text(max_size=60))
def test_a_name_is_its_own_only_spelling(text: str) -> None:
    try:
        once = name(text)
    except ValueError:
        return
    assert name(once) == once == once.lower()
    assert once.isascii()


@pytest.mark.parametrize(
    "host",
    [
        "API.example.org",
        "*.org",
        "*",
        "a.*.org",
        "127.0.0.1",
        "x.internal",
        "model.rehearsal.internal",
        "a.local",
    ],
)
def test_rules_that_mean_too_much_are_refused(host: str) -> None:
    with pytest.raises(ValidationError):
        HostRule(host=host, origin="kit")


def test_a_policy_survives_its_file_and_its_folders_have_the_modes_they_need() -> None:
    paths = Paths.from_env()
    policies.save(paths, policy(rehearsal=True))
    policies.save(paths, policy(rehearsal=True))
    folder = paths.egress("jane")
    assert policies.load(paths, "jane") == policy(rehearsal=True)
    modes = [
        stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "socket", folder / "policy.json")
    ]
    assert modes == [0o700, 0o755, 0o600]
    policies.remove(paths, "jane")
    assert not folder.exists()


def test_a_policy_of_another_agent_or_of_no_form_is_refused() -> None:
    paths = Paths.from_env()
    policies.save(paths, policy())
    paths.egress("jane").rename(paths.egress("joan"))
    with pytest.raises(StateUnreadable, match="another agent"):
        policies.load(paths, "joan")
    (paths.egress("joan") / "policy.json").write_bytes(b'{"id": "joan"}')
    with pytest.raises(StateUnreadable, match="rehearsal"):
        policies.load(paths, "joan")
