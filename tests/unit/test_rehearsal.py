"""The rehearsal model says the same to the same, and plays what a message tells it to."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from troupe_tasks.rehearsal import directive
from troupe_tasks.rehearsal.reply import MODEL, BadRequest, compose, models

TERMINAL = [{"type": "function", "function": {"name": "terminal"}}]


def body(*messages: tuple[str, object], **fields: object) -> bytes:
    spoken = [{"role": role, "content": content} for role, content in messages]
    return json.dumps({"model": MODEL, "messages": spoken, **fields}).encode()


def said(message: str, **fields: object) -> str:
    return compose(body(("system", "You are Jane."), ("user", message), **fields)).text


def test_it_repeats_the_start_of_the_last_user_message() -> None:
    assert said("hello") == "Rehearsal reply to: hello"
    assert said("x" * 500) == f"Rehearsal reply to: {'x' * 200}"
    parts = [{"type": "text", "text": "hi"}, {"type": "image_url"}]
    assert compose(body(("user", parts))).text == "Rehearsal reply to: hi"


def test_the_same_request_gets_the_same_answer() -> None:
    assert compose(body(("user", "a"))) == compose(body(("user", "a")))
    assert compose(body(("user", "a"))).id != compose(body(("user", "b"))).id


def test_a_stream_says_what_the_whole_answer_says_and_ends_with_its_usage() -> None:
    answer = compose(body(("user", "one two  three"), stream=True, stream_options={"include_usage": True}))
    chunks = json.loads(json.dumps(list(answer.chunks())))
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
    assert answer.stream
    assert text == answer.text
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == answer.usage["total_tokens"]


def test_it_calls_an_offered_tool_and_then_quotes_its_result() -> None:
    ask = '[[rehearse: tool terminal {"command": "id"}]]'
    answer = compose(body(("user", ask), tools=TERMINAL))
    assert answer.tool == ("terminal", '{"command": "id"}')
    assert answer.finish == "tool_calls"
    after = compose(body(("user", ask), ("assistant", None), ("tool", "uid=1"), tools=TERMINAL))
    assert (after.text, after.tool) == ("Tool said: uid=1", None)


def test_it_does_not_call_a_tool_that_was_not_offered() -> None:
    answer = compose(body(("user", "[[rehearse: tool terminal {}]]")))
    assert answer.tool is None
    assert "not among those offered" in answer.text


@pytest.mark.parametrize("status", [401, 429, 500])
def test_it_plays_an_error_in_openai_form(status: int) -> None:
    with pytest.raises(BadRequest) as caught:
        said(f"please\n[[rehearse: {status}]]")
    assert caught.value.status == status
    assert "rehearsed" in json.dumps(caught.value.body())


def test_directives_are_read_only_from_lines_of_their_own() -> None:
    assert directive.read("[[rehearse: slow 2.5]]\nhi\n [[rehearse: cut]] ") == directive.Play(
        slow_s=2.5, cut=True
    )
    assert directive.read("say [[rehearse: 401]] aloud") == directive.Play()
    assert said("[[rehearse: slow 0]]\nhi") == "Rehearsal reply to: hi"


@pytest.mark.parametrize(
    "what", ["nonsense", "slow", "slow 601", "slow -1", "slow nan", "tool x", "tool x [1]", "tool x {"]
)
def test_a_directive_outside_the_grammar_is_a_bad_request(what: str) -> None:
    with pytest.raises(BadRequest, match=r"directive|arguments"):
        said(f"[[rehearse: {what}]]")


def test_a_hostile_answer_has_what_a_terminal_would_obey() -> None:
    text = said("[[rehearse: hostile]]")
    assert "\x1b]0;" in text
    assert "\u202e" in text
    assert max(len(line) for line in text.splitlines()) > 5000


def test_a_model_that_does_not_exist_is_told_as_openai_tells_it() -> None:
    with pytest.raises(BadRequest) as caught:
        compose(json.dumps({"model": "gpt-9", "messages": [{"role": "user", "content": "x"}]}).encode())
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    assert json.dumps(models()).count(MODEL) == 1


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_whatever_the_body_it_is_answered_or_refused_never_a_fault(data: bytes) -> None:
    with pytest.raises(BadRequest):
        compose(data)


def test_deeply_nested_json_is_refused() -> None:
    with pytest.raises(BadRequest):
        compose(b"[" * 200_000)
