"""The way out of Docker's sandboxes: bytes whole and in order, ends passed on, and nothing grows without bound."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from troupe_tasks.sandbox.sbx import tunnel
from troupe_tasks.sandbox.sbx.tunnel import HEAD, WINDOW, Broken, Tunnel

Server = Callable[[socket.socket], None]


class Pair:
    """Both sides of a tunnel in threads: connections to `listener` come out at a broker."""

    def __init__(self, folder: Path) -> None:
        self.broker = str(folder / "broker.sock")
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        (in_read, in_write), (out_read, out_write) = os.pipe(), os.pipe()
        self.handles = (in_read, in_write, out_read, out_write)
        self.inside = Tunnel(in_read, out_write, listeners=[self.listener])
        self.outside = Tunnel(out_read, in_write, broker=self.broker)
        self.wake, self.waker = socket.socketpair()
        self.closing = False
        self.threads = [
            threading.Thread(target=self.turn, args=(side,)) for side in (self.inside, self.outside)
        ]
        for thread in self.threads:
            thread.start()

    def turn(self, side: Tunnel) -> None:
        while not side.over:
            try:
                side.turn()
            except (OSError, ValueError):
                if not self.closing:
                    raise
                return

    def connect(self) -> socket.socket:
        return socket.create_connection(self.listener.getsockname(), 10)

    def close(self) -> None:
        self.closing = True  # what is closed beneath a side is an error to it, which an exec's end is not
        os.close(self.handles[3])  # as when the exec ends: each side sees the end of its link
        self.threads[1].join(10)
        os.close(self.handles[1])
        self.threads[0].join(10)
        for side in (self.inside, self.outside):
            for channel in list(side.channels.values()):
                side.close(channel)
            side.ready.close()
        self.listener.close()
        self.wake.close()
        self.waker.close()
        os.close(self.handles[0])
        os.close(self.handles[2])


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


@pytest.fixture
def serve(pair: Pair) -> Iterator[Callable[[Server], None]]:
    """Return what makes a broker of a function that is given each connection."""
    made: list[tuple[socket.socket, threading.Thread]] = []

    def start(work: Server) -> None:
        server = socket.socket(socket.AF_UNIX)
        server.bind(pair.broker)
        server.listen(100)

        def accept() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                thread = threading.Thread(target=work, args=(client,), daemon=True)
                thread.start()

        thread = threading.Thread(target=accept)
        thread.start()
        made.append((server, thread))

    yield start
    for server, thread in made:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(10)


def echo(client: socket.socket) -> None:
    with client:
        while data := client.recv(65536):
            client.sendall(data)
        client.sendall(b"bye")


def everything(client: socket.socket) -> bytes:
    found = b""
    while data := client.recv(65536):
        found += data
    return found


def test_much_goes_both_ways_whole_and_each_end_is_passed_on(
    pair: Pair, serve: Callable[[Server], None]
) -> None:
    serve(echo)
    data = os.urandom(WINDOW * 5)
    with pair.connect() as client:

        def send() -> None:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        assert everything(client) == data + b"bye"
        sender.join(10)


def test_many_connections_do_not_mix(pair: Pair, serve: Callable[[Server], None]) -> None:
    serve(echo)
    many = [pair.connect() for _ in range(60)]
    for number, client in enumerate(many):
        client.sendall(b"%d" % number)
        client.shutdown(socket.SHUT_WR)
    for number, client in enumerate(many):
        with client:
            assert everything(client) == b"%dbye" % number


def test_one_that_does_not_read_holds_up_no_other_and_fills_no_memory(
    pair: Pair, serve: Callable[[Server], None]
) -> None:
    done = threading.Event()

    def flood(client: socket.socket) -> None:
        with client:
            client.settimeout(10)
            if client.recv(1) == b"f":
                try:
                    client.sendall(bytes(WINDOW * 40))
                except OSError:
                    done.set()
            else:
                client.sendall(b"quick")

    serve(flood)
    with pair.connect() as slow, pair.connect() as quick:
        slow.sendall(b"f")
        quick.sendall(b"q")
        assert everything(quick) == b"quick"
        assert sum(len(channel.pending) for channel in list(pair.inside.channels.values())) <= WINDOW
    assert done.wait(10)


def test_without_a_broker_each_is_answered_at_once(pair: Pair) -> None:
    with pair.connect() as client:
        client.sendall(b"GET http://a/ HTTP/1.1\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        assert everything(client).startswith(b"HTTP/1.1 502 ")


@pytest.mark.parametrize(
    "frame",
    [
        HEAD.pack(tunnel.DATA, 1, tunnel.CHUNK + 1),
        HEAD.pack(9, 1, 0),
        HEAD.pack(tunnel.HELLO, 0, 0) * 2,
        HEAD.pack(tunnel.OPEN, 1, 0) * 2,
        b"".join(HEAD.pack(tunnel.OPEN, number, 0) for number in range(1, tunnel.CHANNELS + 2)),
    ],
    ids=["too long", "unknown", "hello twice", "open twice", "too many"],
)  # fmt: skip
def test_what_is_out_of_order_from_inside_ends_the_tunnel(tmp_path: Path, frame: bytes) -> None:
    with pytest.raises(Broken):
        fed(tmp_path / "nobody.sock", frame)


def test_more_than_the_window_ends_the_tunnel(tmp_path: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "broker.sock"))
    server.listen(1)
    full = HEAD.pack(tunnel.DATA, 1, tunnel.CHUNK) + bytes(tunnel.CHUNK)
    with server, pytest.raises(Broken, match="more on channel 1"):
        fed(tmp_path / "broker.sock", HEAD.pack(tunnel.OPEN, 1, 0) + full * 400)


@given(st.binary(max_size=4096))
def test_no_bytes_from_inside_do_more_than_end_it(data: bytes) -> None:
    try:
        fed(Path("/nonexistent/broker.sock"), data)
    except Broken:
        return


def fed(broker: Path, data: bytes) -> None:
    """Give the outside these bytes, and then the end of the link."""
    read, write = os.pipe()
    null = os.open("/dev/null", os.O_RDWR)
    side = Tunnel(read, null, broker=str(broker))
    feeder = threading.Thread(target=_feed, args=(write, data))
    feeder.start()
    try:
        while not side.over:
            side.receive()
    finally:
        os.close(read)
        feeder.join(10)
        os.close(null)
        for channel in list(side.channels.values()):
            side.close(channel)
        side.ready.close()


def _feed(write: int, data: bytes) -> None:
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(write, view) :]
    except OSError:
        pass
    os.close(write)
