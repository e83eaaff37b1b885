"""Ask supervisord, over its Unix socket: XML-RPC with a deadline and a cap.

The socket lies in a 0700 folder of ours, and the one who answers is our own supervisord.
"""

from __future__ import annotations

import http.client
import xmlrpc.client
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

from troupe_tasks.errors import NotReady
from troupe_tasks.host import sockets

_CAP_BYTES = 16 << 20
NOT_RUNNING = 70
ALREADY_STARTED = 60
BAD_NAME = 10
ALREADY_ADDED = 90
_GONE = (FileNotFoundError, ConnectionRefusedError, ConnectionResetError, http.client.RemoteDisconnected)


class Down(Exception):
    """No supervisord listens on the socket."""


class Fault(Exception):
    """supervisord refused, with one of its codes."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, deadline_s: float) -> None:
        super().__init__("localhost", timeout=deadline_s)
        self._path = path
        self._deadline_s = deadline_s

    def connect(self) -> None:
        self.sock = sockets.connect(self._path, self._deadline_s)


def call(path: Path, method: str, *arguments: Any, deadline_s: float = 10, ok: tuple[int, ...] = ()) -> Any:
    """Call one of supervisord's methods and return its result; a fault in ok returns None.

    Raises Down, Fault, or NotReady when it hangs or answers nonsense.
    """
    body = xmlrpc.client.dumps(arguments, f"supervisor.{method}").encode()
    connection = _Connection(path, deadline_s)
    try:
        connection.request("POST", "/RPC2", body, {"Content-Type": "text/xml"})
        response = connection.getresponse()
        data = response.read(_CAP_BYTES)
        (result,), _ = xmlrpc.client.loads(data)
    except _GONE as error:
        raise Down from error
    except xmlrpc.client.Fault as fault:
        if fault.faultCode in ok:
            return None
        raise Fault(fault.faultCode, fault.faultString) from fault
    except (OSError, http.client.HTTPException, ExpatError, ValueError, xmlrpc.client.ResponseError) as error:
        raise NotReady(
            f"the supervisor of the gateways did not answer within {deadline_s:g} s", cause=str(error),
            hint=f"Kill the process named in {path.with_name('supervisord.pid')}; the next command starts another.",
        ) from error  # fmt: skip
    finally:
        connection.close()
    return result
