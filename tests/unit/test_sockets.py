"""Unix sockets work below folders of any depth, and have their mode from the start."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from troupe_tasks.errors import FolderUnusable, StateUnreadable
from troupe_tasks.host import sockets


def test_a_path_longer_than_the_kernel_takes_can_be_listened_on_and_reached(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 100) / ("e" * 100)
    folder.mkdir(parents=True)
    path = folder / "x.sock"
    for _ in range(2):  # the second finds the first's dead socket
        with sockets.listen(path) as server:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            with sockets.connect(path, 5) as client, server.accept()[0] as accepted:
                client.sendall(b"x")
                assert accepted.recv(1) == b"x"


def test_an_answer_without_an_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    with sockets.listen(path) as server:

        def answer() -> None:
            with server.accept()[0] as accepted:
                accepted.recv(10)
                accepted.sendall(b"half")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(StateUnreadable, match="cut"):
            sockets.ask(path, b"?", deadline_s=5)
        thread.join()


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sockets.connect(tmp_path / "none.sock", 1)
    with pytest.raises(FolderUnusable):
        sockets.listen(tmp_path / "none" / "x.sock")
