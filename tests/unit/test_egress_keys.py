"""How keys are held, where they go, and how stand-ins are found."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable, Coroutine
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from troupe_tasks.egress import places, standins
from troupe_tasks.egress.keys import KEPT_S, Keys
from troupe_tasks.egress.messages import Ask
from troupe_tasks.egress.policy import EgressPolicy, Place, ServiceRule
from troupe_tasks.egress.standins import StandIn, Table
from troupe_tasks.egress.verdict import Refusal

STAND_IN, KEY = "sk-or-v1-0123456789abcdef", b"sk-or-v1-the-real-one"
PRINTABLE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=16, max_size=40)


def asked(target: str = "/", **headers: str) -> Ask:
    pairs = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return Ask(b"GET", b"api.example.org", target.encode("latin-1"), pairs, "none")


def with_keys(
    scene: Callable[[Keys, list[str]], Coroutine[None, None, None]], *, kept_s: float = KEPT_S
) -> None:
    read: list[str] = []

    def reader(agent_id: str, service: str) -> bytes:
        read.append(service)
        if service == "none":
            raise OSError("no such key")
        return f"key-of-{agent_id}-{len(read)}".encode()

    async def run() -> None:
        keys = Keys(reader, kept_s=kept_s, deadline_s=0.3)
        try:
            await scene(keys, read)
        finally:
            keys.close()

    asyncio.run(run())


def test_requests_at_once_share_one_reading_and_later_ones_the_key() -> None:
    async def scene(keys: Keys, read: list[str]) -> None:
        found = await asyncio.gather(*(keys.read("jane", "router") for _ in range(20)))
        assert set(found) == {b"key-of-jane-1"}
        assert await keys.read("jane", "router") == b"key-of-jane-1"
        assert await keys.read("joan", "router") == b"key-of-joan-2"
        assert read == ["router", "router"]

    with_keys(scene)


def test_a_key_is_overwritten_after_its_time_and_when_it_is_forgotten() -> None:
    async def scene(keys: Keys, read: list[str]) -> None:
        await keys.read("jane", "router")
        await keys.read("joan", "router")
        held = {agent: shelf.kept["router"].key for agent, shelf in keys._shelves.items()}
        keys.forget("jane")
        assert not any(held["jane"] or b"x")
        assert any(held["joan"] or b"")
        async with asyncio.timeout(5):
            while any(held["joan"] or b""):
                await asyncio.sleep(0.01)
        assert await keys.read("jane", "router") == b"key-of-jane-3"

    with_keys(scene, kept_s=0.1)
    assert KEPT_S <= 120


def test_a_reading_that_began_before_a_forget_serves_nobody_who_asks_after_it() -> None:
    go, values = threading.Event(), [b"old", b"new"]

    def reader(agent_id: str, service: str) -> bytes:
        value = values.pop(0)
        if value == b"old":
            go.wait(5)
        return value

    async def scene() -> None:
        keys = Keys(reader)
        before = asyncio.create_task(keys.read("jane", "router"))
        while len(values) == 2:
            await asyncio.sleep(0.01)
        keys.forget("jane")
        assert await keys.read("jane", "router") == b"new"
        go.set()
        assert await before == b"old"
        assert await keys.read("jane", "router") == b"new"
        keys.close()

    asyncio.run(scene())


def test_a_failing_or_hanging_reader_is_told_and_not_asked_again_at_once() -> None:
    async def scene(keys: Keys, read: list[str]) -> None:
        for _ in range(3):
            with pytest.raises(Refusal, match=r"the key for none can't be read; `troupe secret check jane`"):
                await keys.read("jane", "none")
        assert read == ["none"]
        keys.forget("jane")  # a key that was set meanwhile is tried at once
        with pytest.raises(Refusal):
            await keys.read("jane", "none")
        assert read == ["none", "none"]

    with_keys(scene)
    go, asked_for = threading.Event(), []

    def hang(agent_id: str, service: str) -> bytes:
        asked_for.append(service)
        go.wait(5)
        return b"late"

    async def hanging() -> None:
        keys = Keys(hang, deadline_s=0.1)
        for _ in range(3):
            with pytest.raises(Refusal, match="can't be read"):
                await keys.read("jane", "router")
        assert asked_for == ["router"]
        go.set()
        keys.close()

    asyncio.run(hanging())


def test_nothing_that_could_be_logged_shows_a_header() -> None:
    assert "secret" not in repr(asked("/?key=secret", authorization="Bearer secret"))


@given(key=st.binary(min_size=1, max_size=40).filter(places.usable), before=st.text(max_size=20))
def test_a_query_changes_in_the_one_parameter_only(key: bytes, before: str) -> None:
    rest = "a=" + quote(before)
    request = asked(f"/p?{rest}&key={quote(STAND_IN, safe='')}&{rest}#".rstrip("#"))
    changed = places.put(request, Place(form="query", name="key"), stand_in=STAND_IN.encode(), key=key)
    assert changed is not None
    assert changed.target == f"/p?{rest}&key={quote(key, safe='')}&{rest}".encode()
    assert changed.headers == request.headers
    assert changed.sensitive == {places.TARGET}


@given(text=PRINTABLE.filter(lambda text: text != STAND_IN))
def test_only_the_exact_stand_in_is_replaced(text: str) -> None:
    for place, request in (
        (Place(form="bearer"), asked(authorization=f"Bearer {text}")),
        (Place(form="header", name="x-key"), asked(x_key=text)),
        (Place(form="query", name="key"), asked(f"/?key={quote(text, safe='')}")),
        (Place(form="basic"), asked(authorization="Basic " + base64.b64encode(text.encode()).decode())),
    ):
        assert places.put(request, place, stand_in=STAND_IN.encode(), key=KEY) is None


@pytest.mark.parametrize(
    ("place", "request_"),
    [
        (Place(form="bearer"), asked(authorization=f"Basic {STAND_IN}")),
        (Place(form="bearer"), asked(authorization=STAND_IN)),
        (Place(form="bearer"), asked(authorization=f"Bearer\t{STAND_IN}")),
        (Place(form="bearer"), asked(proxy_authorization=f"Bearer {STAND_IN}")),
        (Place(form="basic"), asked(authorization=f"Basic {STAND_IN}:")),
        (
            Place(form="basic"),
            asked(authorization="Basic " + base64.b64encode(b"a:b:" + STAND_IN.encode()).decode()),
        ),
        (Place(form="query", name="key"), asked(f"/key={STAND_IN}")),
        (Place(form="query", name="key"), asked(f"/?x=1;key={STAND_IN}")),
        (Place(form="query", name="key"), asked(f"/?KEY={STAND_IN}")),
    ],
)
def test_a_place_that_only_looks_like_the_declared_one_is_left(place: Place, request_: Ask) -> None:
    assert places.put(request_, place, stand_in=STAND_IN.encode(), key=KEY) is None


def rule(stand_in: str, service: str = "router") -> ServiceRule:
    return ServiceRule(
        service=service, hosts=("api.example.org",), place=Place(form="bearer"), stand_in=stand_in
    )


def table(*stand_ins: str) -> Table:
    return Table(
        EgressPolicy(id=f"agent-{number}", rehearsal=False, services=(rule(stand_in),))
        for number, stand_in in enumerate(stand_ins)
    )


@given(st.lists(PRINTABLE, min_size=1, max_size=12, unique=True), st.data())
def test_every_stand_in_is_found_in_every_form(stand_ins: list[str], data: st.DataObject) -> None:
    known = table(*stand_ins)
    number = data.draw(st.integers(0, len(stand_ins) - 1))
    wanted = stand_ins[number]
    basic = base64.b64encode(f"a:{wanted}".encode()).decode()
    percent = "".join(f"%{byte:02X}" for byte in wanted.encode())
    for request in (
        asked(f"/{percent}"),
        asked(x=f"..{wanted}"),
        asked(cookie=f"a=b; c={percent}"),
        asked(authorization=f"basic {basic}"),
        asked(authorization=f"Basic {basic.rstrip('=')}"),
    ):
        found = {int(one.agent_id.removeprefix("agent-")) for one in known.seen(request)}
        # One that another one contains may be found for it, never none.
        assert any(wanted in stand_ins[one] or stand_ins[one] in wanted for one in found)


def test_the_longest_of_two_that_begin_alike_is_found_and_nothing_in_plain_text() -> None:
    known = table("sk-0123456789abcdef", "sk-0123456789abcdef-and-more", "zz-0123456789abcdef")
    found = known.seen(asked(x="sk-0123456789abcdef-and-more"))
    assert {one.agent_id for one in found} == {"agent-1"}
    assert not known.seen(asked("/v1/models?x=%", authorization="Basic !!", cookie="sk-0123456789abcde"))
    assert not Table().seen(asked(x="sk-0123456789abcdef"))


def test_judging_names_the_service_and_no_stand_in() -> None:
    mine, other = StandIn("jane", "router"), StandIn("joan", "search")
    standins.judge(frozenset({mine}), "jane", at_home=frozenset({"router"}))
    with pytest.raises(Refusal, match="another agent's stand-in for search"):
        standins.judge(frozenset({mine, other}), "jane", at_home=frozenset({"router", "search"}))
    with pytest.raises(Refusal, match="the stand-in for router is for its own hosts only"):
        standins.judge(frozenset({mine}), "jane", at_home=frozenset())


@pytest.mark.parametrize(
    "changed",
    [
        {"hosts": ()},
        {"hosts": ("API.example.org",)},
        {"hosts": ("*.org",)},
        {"hosts": ("localhost",)},
        {"hosts": ("10.0.0.1",)},
        {"stand_in": "short"},
        {"stand_in": "with a blank in it somewhere"},
        {"stand_in": "café-0123456789abcdef"},
        {"service": "Router"},
        {"place": {"form": "header"}},
        {"place": {"form": "bearer", "name": "x"}},
        {"place": {"form": "header", "name": "host"}},
        {"place": {"form": "header", "name": "Transfer-Encoding"}},
        {"place": {"form": "header", "name": "x\r\ny"}},
        {"place": {"form": "query", "name": ""}},
        {"place": {"form": "body", "name": "x"}},
        {"key": "anything"},
    ],
)
def test_a_service_of_another_form_is_not_read(changed: dict[str, object]) -> None:
    good = rule(STAND_IN).model_dump() | changed
    with pytest.raises(ValidationError):
        ServiceRule.model_validate(good)


def test_two_services_share_neither_name_nor_stand_in() -> None:
    for pair in ((rule(STAND_IN), rule(STAND_IN + "x")), (rule(STAND_IN), rule(STAND_IN, "search"))):
        with pytest.raises(ValidationError, match=r"twice|same stand-in"):
            EgressPolicy(id="jane", rehearsal=False, services=pair)
