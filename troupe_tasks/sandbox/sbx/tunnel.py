"""A sandbox's way to the broker, through one `sbx exec` that is held open: many connections over one pair of pipes.

The same file is both sides and imports the standard library alone. Run inside (pushed there at each start) it
listens where every sandbox's way out is and passes connections on; outside, where outside.py holds the exec, it opens
each of them to the broker's socket. So Docker's own network stays closed for the sandbox, no port of the host is
opened to anybody, and a held exec keeps the sandbox from being stopped for idleness.

A frame is its kind, its channel and its length, then its data. Each side may send WINDOW bytes on a channel and then
as many as the other side says it has passed on: nothing grows without bound, whatever the other side does. What
comes from inside is hostile; a frame out of order ends the tunnel.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
from collections.abc import Sequence

HELLO, OPEN, DATA, END, RESET, CREDIT = range(6)
HEAD = struct.Struct("!BIH")
CHUNK = 32768
WINDOW = 1 << 18
CHANNELS = 512
_LINK_FULL = 1 << 20
_PORT = 3128
_SOCKET = "/run/troupe/egress/broker.sock"
_REFUSAL = (
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: 41\r\n\r\n"
    b"troupe: the egress broker does not answer"
)


class Broken(Exception):
    """The other side does not keep to the frames."""


class Channel:
    """One connection: its socket (none once it is refused), what waits to be written to it, what may be sent."""

    def __init__(self, number: int, sock: socket.socket | None) -> None:
        """Take a connected socket."""
        self.number, self.sock = number, sock
        self.pending = bytearray()
        self.credit = WINDOW
        self.read_over = self.end_came = self.write_over = False
        self.events = 0


class Tunnel:
    """One side: the link to the other, and the channels. With listeners it is the inside, with broker the outside."""

    def __init__(
        self, link_in: int, link_out: int, *, listeners: Sequence[socket.socket] = (), broker: str = ""
    ) -> None:
        """Take the two ends of the link."""
        self.link_in, self.link_out, self.broker = link_in, link_out, broker
        self.listeners = list(listeners)
        self.channels: dict[int, Channel] = {}
        self.came, self.going = bytearray(), bytearray()
        self.ready = selectors.DefaultSelector()
        self.writing = self.accepting = self.over = self.greeted = False
        self.next = 1
        for handle in (link_in, link_out):
            os.set_blocking(handle, False)
        self.ready.register(link_in, selectors.EVENT_READ, "in")
        if self.listeners:
            self.send(HELLO, 0)
        self.settle()

    def turn(self) -> None:
        """Wait for something to do, and do it."""
        for key, events in self.ready.select():
            if key.data == "in":
                self.receive()
            elif key.data == "out":
                self.drain()
            elif key.data == "listen":
                self.accept(key.fileobj)  # type: ignore[arg-type]
            elif key.data.events:  # else it was closed by an earlier event of this turn
                self.move(key.data, events)
        self.settle()

    def settle(self) -> None:
        """Watch what there is reason to watch."""
        self.drain()
        if bool(self.going) != self.writing:
            self.writing = bool(self.going)
            if self.writing:
                self.ready.register(self.link_out, selectors.EVENT_WRITE, "out")
            else:
                self.ready.unregister(self.link_out)
        room = len(self.channels) < CHANNELS
        if room != self.accepting:
            self.accepting = room
            for listener in self.listeners:
                if room:
                    self.ready.register(listener, selectors.EVENT_READ, "listen")
                else:
                    self.ready.unregister(listener)
        for channel in list(self.channels.values()):
            self.watch(channel)

    def watch(self, channel: Channel) -> None:
        """Read from a connection while it may be sent on, write to it while something waits."""
        if channel.sock is None:
            return
        wanted = selectors.EVENT_WRITE if channel.pending else 0
        if not channel.read_over and channel.credit and len(self.going) < _LINK_FULL:
            wanted |= selectors.EVENT_READ
        if wanted == channel.events:
            return
        if not channel.events:
            self.ready.register(channel.sock, wanted, channel)
        elif not wanted:
            self.ready.unregister(channel.sock)
        else:
            self.ready.modify(channel.sock, wanted, channel)
        channel.events = wanted

    def send(self, kind: int, number: int, data: bytes | memoryview = b"") -> None:
        """Put a frame on the link."""
        self.going += HEAD.pack(kind, number, len(data)) + data

    def drain(self) -> None:
        """Write what the link takes."""
        try:
            while self.going:
                del self.going[: os.write(self.link_out, self.going[: 1 << 16])]
        except BlockingIOError:
            pass
        except OSError:
            self.over = True

    def receive(self) -> None:
        """Read what the link has, and do what each whole frame says."""
        try:
            data = os.read(self.link_in, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.over = True
            return
        self.came += data
        while len(self.came) >= HEAD.size:
            kind, number, size = HEAD.unpack_from(self.came)
            if size > CHUNK:
                raise Broken(f"a frame of {size} bytes")
            if len(self.came) < HEAD.size + size:
                return
            body = bytes(self.came[HEAD.size : HEAD.size + size])
            del self.came[: HEAD.size + size]
            self.take(kind, number, body)

    def take(self, kind: int, number: int, body: bytes) -> None:
        """Do what one frame says."""
        channel = self.channels.get(number)
        if kind == HELLO and self.broker and not self.greeted:
            self.greeted = True
        elif kind == OPEN and self.broker and channel is None and len(self.channels) < CHANNELS:
            self.open(number)
        elif kind not in (DATA, END, RESET, CREDIT):
            raise Broken(f"a frame of kind {kind} on channel {number}")
        elif channel is None:
            return  # the last words for one that we have closed
        elif kind == DATA:
            self.incoming(channel, body)
        elif kind == END:
            channel.end_came = True
            self.finish(channel)
        elif kind == RESET:
            self.close(channel)
        elif len(body) == 4:
            channel.credit = min(WINDOW, channel.credit + int.from_bytes(body))

    def open(self, number: int) -> None:
        """Connect a new channel to the broker, or answer in its place."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(2)
        try:
            sock.connect(self.broker)
        except OSError:
            sock.close()
            self.channels[number] = refused = Channel(number, None)
            self.send(DATA, number, _REFUSAL)
            self.send(END, number)
            refused.read_over = True
            return
        sock.setblocking(False)
        self.channels[number] = Channel(number, sock)

    def accept(self, listener: socket.socket) -> None:
        """Take one connection and tell the other side of it."""
        try:
            client, _address = listener.accept()
        except OSError:
            return
        client.setblocking(False)
        while self.next in self.channels:
            self.next = self.next % 0xFFFFFFFF + 1
        self.channels[self.next] = Channel(self.next, client)
        self.send(OPEN, self.next)
        self.next = self.next % 0xFFFFFFFF + 1

    def incoming(self, channel: Channel, body: bytes) -> None:
        """Keep what has to be written to a connection."""
        if channel.end_came or len(channel.pending) + len(body) > WINDOW:
            raise Broken(f"more on channel {channel.number} than was asked for")
        if channel.sock is None:
            self.send(CREDIT, channel.number, len(body).to_bytes(4))
            return
        channel.pending += body
        self.write(channel)

    def move(self, channel: Channel, events: int) -> None:
        """Read or write what a connection is ready for."""
        if events & selectors.EVENT_WRITE:
            self.write(channel)
        if events & selectors.EVENT_READ and channel.sock is not None and not channel.read_over:
            try:
                data = channel.sock.recv(min(CHUNK, channel.credit))
            except BlockingIOError:
                return
            except OSError:
                self.reset(channel)
                return
            if data:
                channel.credit -= len(data)
                self.send(DATA, channel.number, data)
            else:
                channel.read_over = True
                self.send(END, channel.number)
                self.finish(channel)

    def write(self, channel: Channel) -> None:
        """Write what a connection takes, and let the other side send as much again."""
        if channel.sock is None or not channel.pending:
            return
        try:
            count = channel.sock.send(channel.pending)
        except BlockingIOError:
            return
        except OSError:
            self.reset(channel)
            return
        del channel.pending[:count]
        self.send(CREDIT, channel.number, count.to_bytes(4))
        self.finish(channel)

    def finish(self, channel: Channel) -> None:
        """Pass on the end of a stream once all of it is written; close the channel when both ways are over."""
        if channel.end_came and not channel.pending and not channel.write_over:
            channel.write_over = True
            if channel.sock is not None:
                try:
                    channel.sock.shutdown(socket.SHUT_WR)
                except OSError:
                    self.reset(channel)
                    return
        if channel.read_over and channel.write_over:
            self.close(channel)

    def reset(self, channel: Channel) -> None:
        """Close a connection that broke, and say so."""
        self.send(RESET, channel.number)
        self.close(channel)

    def close(self, channel: Channel) -> None:
        """Close a connection."""
        self.channels.pop(channel.number, None)
        if channel.sock is not None:
            if channel.events:
                self.ready.unregister(channel.sock)
                channel.events = 0
            channel.sock.close()
            channel.sock = None


def inside() -> None:
    """Listen where a sandbox's way out is, and carry it over stdin and stdout."""
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", _PORT))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_SOCKET)
    local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    local.bind(_SOCKET)
    os.chmod(_SOCKET, 0o666)
    for listener in (server, local):
        listener.listen(128)
        listener.setblocking(False)
    tunnel = Tunnel(0, 1, listeners=(server, local))
    while not tunnel.over:
        tunnel.turn()


if __name__ == "__main__":
    inside()
