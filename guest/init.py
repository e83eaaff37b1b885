"""The first process of a sandbox: reaps what others leave, and carries 127.0.0.1:3128 to the broker's socket.

It runs on the image's own Python and imports only the standard library. Each connection is one pair of sockets
and two small buffers; an end that stops writing is passed on as such, so that the other may still answer.
"""

import os
import selectors
import signal
import socket

PORT = 3128
BROKER = "/run/troupe/egress/broker.sock"
CHUNK = 65536
LIMIT = 512
REFUSAL = (
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: 41\r\n\r\n"
    b"troupe: the egress broker does not answer"
)


class End:
    """One end of a pair: its socket, what is still to be written to it, and which ways are over."""

    def __init__(self, sock: socket.socket) -> None:
        """Take a connected socket."""
        self.sock = sock
        self.peer = self
        self.pending = b""
        self.read_over = False
        self.write_over = False
        self.events = 0


class Forwarder:
    """Everything that one selector watches."""

    def __init__(self, server: socket.socket) -> None:
        """Take a listening socket."""
        self.server = server
        self.ready = selectors.DefaultSelector()
        self.pairs = 0
        self.accepting = False
        self.accept_while_room()

    def accept_while_room(self) -> None:
        """Watch the listening socket only while there is room for another pair."""
        room = self.pairs < LIMIT
        if room and not self.accepting:
            self.ready.register(self.server, selectors.EVENT_READ, None)
        elif not room and self.accepting:
            self.ready.unregister(self.server)
        self.accepting = room

    def turn(self, timeout_s: float | None) -> None:
        """Wait for something to do, and do it."""
        for key, events in self.ready.select(timeout_s):
            if key.data is None:
                self.accept()
            elif isinstance(key.data, socket.socket):
                key.data.recv(CHUNK)
                reap()
            elif key.data.events:  # else it was closed by an earlier event of this turn
                self.move(key.data, events)

    def accept(self) -> None:
        """Take one connection and connect it to the broker, or refuse it at once."""
        try:
            client, _address = self.server.accept()
        except OSError:
            return
        broker = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        broker.settimeout(2)
        try:
            broker.connect(BROKER)
        except OSError:
            broker.close()
            refuse(client)
            return
        near, far = End(client), End(broker)
        near.peer, far.peer = far, near
        self.pairs += 1
        self.accept_while_room()
        for end in (near, far):
            end.sock.setblocking(False)
            self.watch(end)

    def watch(self, end: End) -> None:
        """Read from an end while its peer has nothing pending, write to it while it has."""
        events = 0
        if not end.read_over and not end.peer.pending:
            events |= selectors.EVENT_READ
        if end.pending:
            events |= selectors.EVENT_WRITE
        if events == end.events:
            return
        if not end.events:
            self.ready.register(end.sock, events, end)
        elif not events:
            self.ready.unregister(end.sock)
        else:
            self.ready.modify(end.sock, events, end)
        end.events = events

    def move(self, end: End, events: int) -> None:
        """Read or write what an end is ready for."""
        try:
            if events & selectors.EVENT_WRITE and end.pending:
                end.pending = end.pending[end.sock.send(end.pending) :]
            if events & selectors.EVENT_READ and not end.read_over and not end.peer.pending:
                data = end.sock.recv(CHUNK)
                end.read_over = not data
                end.peer.pending = data
                if data:
                    end.peer.pending = data[end.peer.sock.send(data) :]
        except BlockingIOError:
            pass
        except OSError:
            self.close(end)
            return
        self.settle(end, end.peer)

    def settle(self, *ends: End) -> None:
        """Pass on the end of a stream once all of it is written; close the pair when both ways are over."""
        for end in ends:
            if end.peer.read_over and not end.pending and not end.write_over:
                end.write_over = True
                try:
                    end.sock.shutdown(socket.SHUT_WR)
                except OSError:
                    self.close(end)
                    return
        if all(end.write_over for end in ends):
            self.close(ends[0])
            return
        for end in ends:
            self.watch(end)

    def close(self, end: End) -> None:
        """Close both ends of a pair."""
        for one in (end, end.peer):
            if one.events:
                self.ready.unregister(one.sock)
                one.events = 0
            one.sock.close()
            one.pending = b""
        self.pairs -= 1
        self.accept_while_room()


def refuse(client: socket.socket) -> None:
    """Answer a client that the broker can't be reached for, so that it need not wait."""
    client.settimeout(1)
    try:
        client.recv(CHUNK)
        client.sendall(REFUSAL)
        client.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    client.close()


def reap() -> None:
    """Collect every process that ended and has nobody else to do it."""
    while True:
        try:
            pid, _status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def end_all(forwarder: Forwarder) -> None:
    """Ask every other process to end, and carry their traffic until none is left (or the host loses patience)."""
    try:
        os.kill(-1, signal.SIGTERM)
    except ProcessLookupError:
        return
    while sum(name.isdigit() for name in os.listdir("/proc")) > 1:
        forwarder.turn(0.02)
        reap()


def main() -> None:
    """Run until the sandbox stops."""
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", PORT))
    server.listen(128)
    server.setblocking(False)
    # A signal's number is written to this pair, which wakes the selector; the handlers themselves do nothing.
    woken, waker = socket.socketpair()
    woken.setblocking(False)
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    asked: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    forwarder = Forwarder(server)
    forwarder.ready.register(woken, selectors.EVENT_READ, woken)
    while not asked:
        forwarder.turn(None)
    end_all(forwarder)


if __name__ == "__main__":
    main()
