"""What the rehearsal model says: a function of the request alone, in OpenAI's chat-completions form."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

from troupe_tasks.rehearsal import directive

MODEL = "rehearsal-1"
Json = dict[str, object]
_QUOTED = 200
_HOSTILE = (
    "\x1b]0;owned\x07\x1b[2J\x1b[1;31mred\x1b[0m \x9b31m \x1b]52;c;cm0gLXJmIC8=\x07 \u202egnp.exe"
    " \u2028 \x00 \x08\r"
) + "A" * 10_000


class BadRequest(Exception):
    """The request gets an error of OpenAI's form: a status, a code, and what is wrong."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message

    def body(self) -> Json:
        """Return the answer's body."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": None, "code": self.code}}


_FAILURES = {
    401: BadRequest(401, "invalid_api_key", "Incorrect API key provided (rehearsed)."),
    429: BadRequest(429, "rate_limit_exceeded", "Rate limit reached (rehearsed)."),
    500: BadRequest(500, "internal_error", "The server had an error (rehearsed)."),
}


@dataclass(frozen=True)
class Reply:
    """One answer, before it is put on the wire."""

    id: str
    text: str
    tool: tuple[str, str] | None
    stream: bool
    with_usage: bool
    prompt_tokens: int
    slow_s: float
    cut: bool

    @property
    def usage(self) -> Json:
        """Return the count of tokens."""
        said = directive.tokens(self.text + (self.tool[1] if self.tool else ""))
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": said,
            "total_tokens": self.prompt_tokens + said,
        }

    @property
    def finish(self) -> str:
        """Return why the answer ends where it ends."""
        return "tool_calls" if self.tool else "stop"

    def calls(self) -> list[Json]:
        """Return the tool calls, one or none."""
        if self.tool is None:
            return []
        function = {"name": self.tool[0], "arguments": self.tool[1]}
        return [{"index": 0, "id": f"call_{self.id[-8:]}", "type": "function", "function": function}]

    def whole(self) -> Json:
        """Return the answer as one completion."""
        message: Json = {"role": "assistant", "content": self.text or None}
        if self.tool:
            message["tool_calls"] = self.calls()
        choice = {"index": 0, "message": message, "finish_reason": self.finish, "logprobs": None}
        return {**self._head("chat.completion"), "choices": [choice], "usage": self.usage}

    def chunks(self) -> Iterator[Json]:
        """Yield the answer as a stream's chunks: a word each, why it ends, and the usage if asked for."""
        first: Json = {"role": "assistant"}
        if self.tool:
            yield self._chunk({**first, "tool_calls": self.calls()}, None)
        words = self.text.split(" ") if self.text else []
        for number, word in enumerate(words):
            delta: Json = {"content": word if number == len(words) - 1 else f"{word} "}
            yield self._chunk({**first, **delta} if number == 0 else delta, None)
        yield self._chunk({}, self.finish)
        if self.with_usage:
            yield {**self._head("chat.completion.chunk"), "choices": [], "usage": self.usage}

    def _chunk(self, delta: Json, finish: str | None) -> Json:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": 0, "model": MODEL}


def models() -> Json:
    """Return the list of models: one."""
    return {"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "troupe"}]}


def compose(body: bytes) -> Reply:
    """Return the answer to a chat-completions request; raises BadRequest."""
    request = _request(body)
    if request.get("model") != MODEL:
        raise BadRequest(404, "model_not_found", f"The model does not exist; there is only {MODEL}.")
    messages = _messages(request)
    last_user = next((text for role, text in reversed(messages) if role == "user"), "")
    last_role, last_text = messages[-1]
    options = request.get("stream_options")
    common = {
        "id": f"chatcmpl-{hashlib.sha256(body).hexdigest()[:24]}",
        "stream": request.get("stream") is True,
        "with_usage": isinstance(options, dict) and options.get("include_usage") is True,
        "prompt_tokens": sum(directive.tokens(text) for _, text in messages),
    }
    if last_role == "tool":
        return _reply(common, text=f"Tool said: {last_text[:4000]}")
    try:
        play = directive.read(last_user)
    except ValueError as error:
        raise BadRequest(400, "bad_directive", str(error)) from None
    if play.status != 200:
        raise _FAILURES[play.status]
    return _played(common, play, request=request, last_user=last_user)


def _played(common: Json, play: directive.Play, *, request: Json, last_user: str) -> Reply:
    text = f"Rehearsal reply to: {directive.without(last_user)[:_QUOTED]}"
    if play.hostile:
        text = _HOSTILE
    tool = play.tool if play.tool and play.tool[0] in _offered(request) else None
    if tool:
        text = ""
    elif play.tool:
        text = f"The tool {play.tool[0]} is not among those offered to me."
    return _reply(common, text=text, tool=tool, slow_s=play.slow_s, cut=play.cut)


def _reply(
    common: Json, *, text: str, tool: tuple[str, str] | None = None, slow_s: float = 0, cut: bool = False
) -> Reply:
    return Reply(
        id=str(common["id"]),
        text=text,
        tool=tool,
        stream=bool(common["stream"]),
        with_usage=bool(common["with_usage"]),
        prompt_tokens=int(str(common["prompt_tokens"])),
        slow_s=slow_s,
        cut=cut,
    )


def _request(body: bytes) -> Json:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequest(400, "bad_json", "The body is not JSON.") from None
    if not isinstance(found, dict):
        raise BadRequest(400, "bad_json", "The body is not a JSON object.")
    return found


def _messages(request: Json) -> list[tuple[str, str]]:
    """Return every message as (role, text)."""
    found = request.get("messages")
    if not isinstance(found, list) or not found or not all(isinstance(message, dict) for message in found):
        raise BadRequest(400, "bad_messages", "messages must be a list of objects, at least one.")
    return [(str(message.get("role")), _text(message.get("content"))) for message in found]


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [part.get("text") for part in content if isinstance(part, dict)]
    return "\n".join(part for part in parts if isinstance(part, str))


def _offered(request: Json) -> set[str]:
    tools = request.get("tools")
    listed = tools if isinstance(tools, list) else []
    functions = [tool.get("function") for tool in listed if isinstance(tool, dict)]
    return {str(function.get("name")) for function in functions if isinstance(function, dict)}
