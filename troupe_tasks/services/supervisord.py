"""supervisord, which a full disk does not end; started by path, without the package.

By itself it tells what it could not log on its stderr, whose file is on the same disk: it ended of that, or let go of
the service whose words they were, and every later look at the services started all of them again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def patient(emit: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Return a log's emit that leaves out what can't be written, and opens a log anew that could not be rotated."""

    def emitted(handler: Any, record: Any) -> None:
        try:
            if handler.stream.closed:
                handler.reopen()
            emit(handler, record)
        except (OSError, ValueError):
            return

    return emitted


def main() -> None:
    """Be supervisord."""
    from supervisor import loggers, supervisord

    loggers.Handler.handleError = lambda _handler: None
    loggers.RotatingFileHandler.emit = patient(loggers.RotatingFileHandler.emit)
    supervisord.main()


if __name__ == "__main__":
    main()
