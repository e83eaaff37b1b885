"""Carry one request's body to its host and the answer back, both at once, and end when either side is gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from troupe_tasks.egress.messages import Answering, Ask, Asking, End, Head, Piece
from troupe_tasks.egress.verdict import Cut, Refusal


async def begin(answering: Answering, request: Ask) -> None:
    """Send a request's beginning; raises Refusal."""
    try:
        await answering.ask(request)
    except Cut:
        raise Refusal(502, "unreachable", "the host broke the connection") from None


async def relay(asking: Asking, answering: Answering, *, answered: Callable[[Head], Head]) -> None:
    """Serve the rest; answered gets the answer's beginning and returns what of it goes on.

    Raises Refusal before that, Cut after it.
    """
    up = asyncio.create_task(_upload(asking, answering))
    down = asyncio.create_task(_download(asking, answering, answered=answered))
    try:
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        if up.done() and not down.done():
            up.result()  # raises when the agent is gone: nobody waits for the answer
        await down
    finally:
        for task in (up, down):
            task.cancel()
            # What either says now is of no use: the exchange has its outcome already.
            with contextlib.suppress(asyncio.CancelledError, Cut, Refusal, TimeoutError):
                await task


async def _upload(asking: Asking, answering: Answering) -> None:
    """Send the request's body on, then watch for the agent hanging up."""
    while True:
        piece = await asking.receive()
        try:
            await answering.send(piece)
        except Cut:
            return  # it may have answered early, then closed: the answer says why
        if isinstance(piece, End):
            await asking.gone()
            return


async def _download(asking: Asking, answering: Answering, *, answered: Callable[[Head], Head]) -> None:
    """Send the answer on as it comes."""
    head = answered(await _head(answering))
    await asking.answer(head)
    while head.status != 101:
        piece = await _piece(answering)
        await asking.send(piece)
        if isinstance(piece, End):
            return


async def _head(answering: Answering) -> Head:
    try:
        return await answering.head()
    except TimeoutError:
        raise Refusal(504, "unreachable", "the host did not answer in time") from None
    except Cut as cut:
        raise Refusal(502, "unreachable", str(cut)) from None


async def _piece(answering: Answering) -> Piece:
    try:
        return await answering.receive()
    except TimeoutError:
        raise Cut("the host fell silent") from None
