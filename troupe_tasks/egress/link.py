"""One HTTP/2 connection, either role: h2's state machine over a pipe, with every queue and game bounded.

A stream's unread bytes are bounded by its window, which opens again only as they are passed on; all of a
connection's by the connection's window. Senders take turns, so that a reader who takes nothing makes one of
them wait with its bytes, not all.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
from hyperframe.frame import Frame, GoAwayFrame

from troupe_tasks.egress.limits import Limits
from troupe_tasks.egress.messages import End, Piece
from troupe_tasks.egress.pipe import Pipe
from troupe_tasks.egress.verdict import Cut

Fields = list[tuple[bytes, bytes]]
_FRAME_BYTES = 16 * 1024
_TABLE_BYTES = 4096  # of header compression; a peer may ask for gigabytes
_SILENT_BYTES = 64 * 1024  # that come without anything complete in them: a header block without end
_QUEUED_BYTES = 256 * 1024  # answers to a peer who asks (PING, SETTINGS) and does not read
# Frames that carry nothing are paid from this; useful ones earn.
_PATIENCE = 1000.0
_PATIENCE_PER_S = 50.0
_USEFUL_BYTES = 256
_RESET_COSTS = 10.0
_EMPTY = (
    h2.events.PingReceived,
    h2.events.PingAckReceived,
    h2.events.RemoteSettingsChanged,
    h2.events.SettingsAcknowledged,
    h2.events.PriorityUpdated,
    h2.events.UnknownFrameReceived,
    h2.events.WindowUpdated,
    h2.events.AlternativeServiceAvailable,
)


class Misused(Cut):
    """The other side does not keep to HTTP/2, or floods."""


class _Machine(h2.connection.H2Connection):
    """h2's connection, but for two things that long-lived ones need."""

    # How closed streams ended is looked up for frames that were on their way; 65536 of them are 8 MiB.
    MAX_CLOSED_STREAMS = 512

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[h2.events.Event]]:
        # h2 takes a GOAWAY for the end of everything; hosts send it to end a connection once its streams are
        # done (RFC 9113, section 6.8), and those streams may be a model's answer.
        going = h2.events.ConnectionTerminated()
        going.error_code, going.last_stream_id = frame.error_code, frame.last_stream_id
        return [], [going]


class Stream:
    """One stream: what has come and is not read yet, and how it ended."""

    def __init__(self, stream_id: int) -> None:
        self.id = stream_id
        self.inbox = bytearray()
        self.ended: End | None = None
        self.broken = ""
        self.unprocessed = False
        self.has_finished = False  # sending
        self.answer: Fields | None = None
        self.arrived = asyncio.Event()
        self.opened = asyncio.Event()

    def break_off(self, why: str) -> None:
        """Let whoever waits on the stream know that it is over."""
        self.broken = self.broken or why
        self.arrived.set()
        self.opened.set()


class Link:
    """A connection; pump() serves it until it ends."""

    def __init__(
        self, pipe: Pipe, *, client_side: bool, window_bytes: int, idle_s: float, limits: Limits
    ) -> None:
        self.pipe, self.limits, self._idle_s = pipe, limits, idle_s
        self.streams: dict[int, Stream] = {}
        self.is_ending = False  # takes no new streams
        self.h2 = _Machine(h2.config.H2Configuration(client_side=client_side, header_encoding=None))
        self.h2.decoder.max_header_list_size = limits.head_bytes
        codes = h2.settings.SettingCodes
        self.h2.local_settings = h2.settings.Settings(
            client=client_side,
            initial_values={
                codes.MAX_CONCURRENT_STREAMS: limits.streams,
                codes.MAX_HEADER_LIST_SIZE: limits.head_bytes,
                codes.INITIAL_WINDOW_SIZE: window_bytes,
                **({codes.ENABLE_PUSH: 0} if client_side else {}),
            },
        )
        self._turn = asyncio.Lock()
        self._patience, self._at = _PATIENCE, time.monotonic()
        self._silent_bytes = 0
        self._idle: asyncio.TimerHandle | None = None
        self._window_bytes = 4 * window_bytes

    def begin(self) -> None:
        """Say hello; raises Cut."""
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(self._window_bytes - 65535)
        self.flush()
        self._watch_idleness()

    async def pump(self) -> None:
        """Serve the connection until the other side ends it; raises Cut, with the reason, on any misuse."""
        why = "the connection ended"
        try:
            while data := await self.pipe.read():
                self._take(data)
                self.flush()
                if self.pipe.queued_bytes() > _QUEUED_BYTES:
                    await self.pipe.drained()
        except Cut as cut:
            why = str(cut)
            raise
        finally:
            self.is_ending = True
            if self._idle is not None:
                self._idle.cancel()
            for stream in list(self.streams.values()):
                self.on_broken(stream, why)

    def _take(self, data: bytes) -> None:
        try:
            events = self.h2.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            # Its text may repeat what the other side sent; the class says enough.
            self.flush()
            raise Misused(f"HTTP/2 misused: {type(error).__name__}") from None
        self._silent_bytes = 0 if events else self._silent_bytes + len(data)
        if self._silent_bytes > _SILENT_BYTES:
            self._calm_down()
        self.h2.encoder.header_table_size = min(self.h2.encoder.header_table_size, _TABLE_BYTES)
        for event in events:
            self._pay(event)
            self.on_event(event)

    def _pay(self, event: h2.events.Event) -> None:
        now = time.monotonic()
        self._patience = min(_PATIENCE, self._patience + (now - self._at) * _PATIENCE_PER_S)
        self._at = now
        if isinstance(event, h2.events.StreamReset):
            self._patience -= _RESET_COSTS
        elif isinstance(event, _EMPTY) or (isinstance(event, h2.events.DataReceived) and not event.data):
            self._patience -= 1
        elif isinstance(event, h2.events.DataReceived) and len(event.data) >= _USEFUL_BYTES:
            self._patience += 1
        if self._patience < 0:
            self._calm_down()

    def _calm_down(self) -> None:
        self.h2.close_connection(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
        self.flush()
        raise Misused("HTTP/2 misused: a flood")

    def on_event(self, event: h2.events.Event) -> None:
        """Take up what both roles have alike."""
        stream = self.streams.get(getattr(event, "stream_id", None) or 0)
        match event:
            case h2.events.DataReceived():
                self._arrived(stream, event)
            case h2.events.StreamEnded() if stream is not None:
                stream.ended = stream.ended or End()
                stream.arrived.set()
            case h2.events.TrailersReceived() if stream is not None:
                stream.ended = End(tuple((bytes(name), bytes(value)) for name, value in event.headers))
                stream.arrived.set()
            case h2.events.StreamReset() if stream is not None:
                stream.unprocessed = event.error_code == h2.errors.ErrorCodes.REFUSED_STREAM
                self.on_broken(stream, "the other side reset the stream")
            case h2.events.WindowUpdated() if stream is not None:
                stream.opened.set()
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                for one in self.streams.values():
                    one.opened.set()

    def _arrived(self, stream: Stream | None, event: h2.events.DataReceived) -> None:
        spare = event.flow_controlled_length or 0
        if stream is not None and not stream.broken:
            stream.inbox += event.data
            stream.arrived.set()
            spare -= len(event.data)
        if spare and event.stream_id:  # padding, or bytes that nobody waits for any more
            self.h2.acknowledge_received_data(spare, event.stream_id)

    def on_broken(self, stream: Stream, why: str) -> None:
        """End one stream."""
        stream.break_off(why)

    def add(self, stream: Stream) -> None:
        """Take a stream up."""
        self.streams[stream.id] = stream
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def drop(self, stream: Stream, code: h2.errors.ErrorCodes = h2.errors.ErrorCodes.CANCEL) -> None:
        """Let a stream go, resetting it unless both sides are done."""
        if self.streams.pop(stream.id, None) is None:
            return
        if stream.inbox:
            self.h2.acknowledge_received_data(len(stream.inbox), stream.id)
        stream.break_off("it is over")
        if not (stream.has_finished and stream.ended):
            with contextlib.suppress(h2.exceptions.ProtocolError):  # the other side may have
                self.h2.reset_stream(stream.id, code)
        with contextlib.suppress(Cut):  # the pump meets it too, and tells
            self.flush()
        if not self.streams:
            self._watch_idleness()

    def _watch_idleness(self) -> None:
        if not self.is_ending:
            self._idle = asyncio.get_running_loop().call_later(self._idle_s, self.finish)

    def finish(self) -> None:
        """End the connection, which has no streams."""
        self.is_ending = True
        with contextlib.suppress(Cut, h2.exceptions.ProtocolError):
            self.h2.close_connection()
            self.flush()
            self.pipe.end()
        self.pipe.close()

    def flush(self) -> None:
        """Queue what h2 has to say; raises Cut."""
        if data := self.h2.data_to_send():
            self.pipe.put(data)

    async def receive(self, stream: Stream) -> Piece:
        """Return a stream's next piece; raises Cut or TimeoutError."""
        await self.arrival(stream, lambda: bool(stream.inbox or stream.ended))
        if stream.inbox:
            data = bytes(stream.inbox[: self.limits.chunk_bytes])
            del stream.inbox[: len(data)]
            self.h2.acknowledge_received_data(len(data), stream.id)
            self.flush()
            return data
        return stream.ended or End()

    async def arrival(self, stream: Stream, has_come: Callable[[], bool]) -> None:
        """Wait until something has come on a stream; raises Cut or TimeoutError."""
        while not has_come():
            if stream.broken:
                raise Cut(stream.broken)
            stream.arrived.clear()
            async with asyncio.timeout(self.limits.quiet_s):
                await stream.arrived.wait()

    def say(self, stream: Stream, fields: Iterable[tuple[bytes, bytes]], *, ends: bool = False) -> None:
        """Send headers or trailers; raises Cut."""
        self._check(stream)
        try:
            self.h2.send_headers(stream.id, list(fields), end_stream=ends)
        except h2.exceptions.ProtocolError as error:
            raise Cut(f"not to be said over HTTP/2: {type(error).__name__}") from None
        stream.has_finished = ends
        self.flush()

    async def send(self, stream: Stream, piece: Piece) -> None:
        """Send a piece of a body and wait until the other side keeps up; raises Cut."""
        if isinstance(piece, End):
            if piece.trailers:
                self.say(stream, piece.trailers, ends=True)
            elif not stream.has_finished:
                self._send_some(stream, b"", ends=True)
                stream.has_finished = True
            return
        view = memoryview(piece)
        while view:
            await self._window(stream)
            async with self._turn:
                await self.pipe.drained()
                if (room := min(self._room(stream), _FRAME_BYTES)) > 0:
                    self._send_some(stream, bytes(view[:room]), ends=False)
                    view = view[room:]

    async def _window(self, stream: Stream) -> None:
        """Wait for a window; raises Cut."""
        while True:
            if self._room(stream) > 0:
                return
            stream.opened.clear()
            try:
                async with asyncio.timeout(self.limits.stuck_s):
                    await stream.opened.wait()
            except TimeoutError:
                raise Cut("the other side takes nothing") from None

    def _room(self, stream: Stream) -> int:
        self._check(stream)
        try:
            return self.h2.local_flow_control_window(stream.id)
        except h2.exceptions.ProtocolError:
            raise Cut("the stream is closed") from None

    def _send_some(self, stream: Stream, data: bytes, *, ends: bool) -> None:
        self._check(stream)
        try:
            self.h2.send_data(stream.id, data, end_stream=ends)
        except h2.exceptions.ProtocolError:
            raise Cut("the stream is closed") from None
        if len(data) >= _USEFUL_BYTES:
            self._patience += 2
        self.flush()

    def _check(self, stream: Stream) -> None:
        if stream.broken:
            raise Cut(stream.broken)
