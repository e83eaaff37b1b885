"""`troupe chat ID [MESSAGE]`."""

from __future__ import annotations

import sys

from invoke import Context

from troupe_tasks.cli import Rest
from troupe_tasks.commands.frame import command


@command(
    example='troupe chat mr-doyle "What is on my desk today?"',
    flags={"agent": "The agent's ID.", "message": "One message; without it, and on a terminal, Hermes's own chat.",
           "raw": "Print the reply as it came, unescaped."},
    positional=("agent",), rest=Rest("message", " "),
)  # fmt: skip
def chat(
    context: Context,
    agent: str,
    message: str = "",
    raw: bool = False,
    json: bool = False,
    debug: bool = False,
) -> None:
    """Talk to a running agent: Hermes's own chat, or one message (by argument or stdin) and its reply."""
    from troupe_tasks.commands.agent import chosen
    from troupe_tasks.commands.output import show_json
    from troupe_tasks.operations import talk
    from troupe_tasks.text import escape

    house, agent_id = chosen(agent)
    message = message or talk.from_stdin(sys.stdin)
    if not message:
        sys.exit(talk.converse(house, agent_id))
    reply = talk.say(house, agent_id, message)
    if json:
        show_json({"reply": reply.decode(errors="replace")})
    elif raw:
        sys.stdout.buffer.write(reply)
        sys.stdout.buffer.flush()
    else:
        print(escape(reply).rstrip("\n"))
