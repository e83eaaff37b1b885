"""What sbx says: its JSON, and the words of its failures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from troupe_tasks.errors import AlreadyExists, DaemonFailed, NotReady, SandboxFailed, SandboxGone, TroupeError
from troupe_tasks.sandbox.sbx import answers, calls, trouble


def listed(said: bytes) -> list[str]:
    return [one.name for one in answers.decode(answers.Sandboxes, said, command="sbx ls").sandboxes]


def test_json_is_found_behind_the_daemons_own_words() -> None:
    banner = b"Starting sandboxd daemon...\nLogs: /x\n"
    assert listed(banner + b'{"sandboxes": [{"name": "a", "id": "1", "status": "running", "new": 1}]}\n') == [
        "a"
    ]
    assert listed(b'{"sandboxes": []}') == []
    assert listed(b'[info] {starting\n[1]\n{"sandboxes":\n []}\n') == []


_ONE = b'{"sandboxes": [{"name": "a", "id": "1", "status": "running"}]}'


@pytest.mark.parametrize(
    "said",
    [_ONE + b"\nA new release of sbx is there\n", _ONE + b" and more", _ONE + b'\n{"sandboxes": []}', b"[1]\n" + _ONE,
     b"{\n" * 20 + _ONE, b"[" * 60_000 + b"\n" + _ONE, b"\xff{\n" + _ONE + b"\xff"],
)  # fmt: skip
def test_json_is_found_before_and_between_other_words(said: bytes) -> None:
    assert listed(said) == ["a"]


def test_a_part_of_a_cut_answer_is_no_answer() -> None:
    cut = b'{\n  "all": [\n    {"sandboxes": []}\n'
    with pytest.raises(DaemonFailed, match="no answer that reads"):
        listed(cut)


def test_another_form_is_to_be_reported_and_not_mended_by_a_restart() -> None:
    with pytest.raises(DaemonFailed, match="another form") as told:
        listed(b'{"sandboxes": {}}')
    assert "`sbx version`" in told.value.hint
    assert "restart" not in told.value.hint


@pytest.mark.parametrize(
    "said",
    [b"", b"no sandboxes", b"{}", b"[]", b'{"sandboxes": null}', b'{"sandboxes": [{"name": "a", "status": "x"}]}',
     b'{"sandboxes": [{"name": 1, "id": "1", "status": "x"}]}', b'{"sandboxes": [', b"\xff{"],
)  # fmt: skip
def test_what_is_no_listing_is_never_an_empty_one(said: bytes) -> None:
    with pytest.raises(DaemonFailed):
        listed(said)


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_else(said: bytes) -> None:
    with pytest.raises(DaemonFailed) as told:
        listed(b"-" + said.replace(b"\n", b""))
    assert str(told.value).isprintable()


@pytest.mark.parametrize(
    ("said", "error", "what"),
    [
        ("ERROR: Not authenticated to Docker\nSign in with: sbx login", NotReady, "not signed in"),
        ("401 Unauthorized: docker session has expired", NotReady, "not signed in"),
        ("your Docker session could not be refreshed due to a network issue", NotReady, "renew"),
        # Both at once: an account with no policy is signed in all the same.
        ("ERROR: global network policy has not been initialized\nnot authenticated to docker", NotReady, "policy"),
        ('kit "X" cannot be installed - its source is not in your allowlist.', NotReady, "a local kit"),
        ("ERROR: no sandbox named 'x'", SandboxGone, "no such sandbox"),
        ("sandbox 'x' not found", SandboxGone, "no such sandbox"),
        ("ERROR: failed to stop sandbox 'x': shim process not found", SandboxFailed, "failed"),
        ("create sandbox: image troupe.local/image:x not found", SandboxFailed, "failed"),
        ("make sandbox: the folder already exists", SandboxFailed, "failed"),
        ("ERROR: global network policy has not been\ninitialized", NotReady, "policy"),
        ("sandbox 'x'\r\n  not found", SandboxGone, "no such sandbox"),
        ('409 Conflict: sandbox "x" already exists', AlreadyExists, "already"),
        ("failed to create network: network x already exists", DaemonFailed, "a part of a sandbox"),
        ("daemon failed to start properly after 10 retries", DaemonFailed, "does not work"),
        ("no sandbox executor available", DaemonFailed, "does not work"),
        ("500 Internal Server Error: failed to start runtime", DaemonFailed, "does not work"),
        ("mkfs.erofs: No space left on device", DaemonFailed, "no room"),
        ("database already in use", NotReady, "another release's"),
        ("ERROR: something of tomorrow", SandboxFailed, "failed"),
        ("", SandboxFailed, "failed"),
    ],
)  # fmt: skip
def test_known_words_become_errors_with_what_to_do(said: str, error: type[TroupeError], what: str) -> None:
    found = trouble.told(said.encode(), doing="`sbx x`")
    assert type(found) is error
    assert what in found.what
    assert found.hint


@given(st.binary(max_size=300))
def test_whatever_sbx_says_is_shown_as_one_safe_line(said: bytes) -> None:
    assert str(trouble.told(said, doing="`sbx x`")).isprintable()


@pytest.mark.parametrize(
    ("text", "number"),
    [("v0.48.0", (0, 48)), ("0.50.1-rc1", (0, 50)), ("1.0", (1, 0)), ("dev", None), ("", None)],
)
def test_a_releases_number_is_read(text: str, number: tuple[int, int] | None) -> None:
    assert calls.number(text) == number
