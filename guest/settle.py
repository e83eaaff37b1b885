"""Change variables in the agent's .env: {"NAME": "value" or null} on stdin, the file's path as the only argument.

Other lines stay as they are. This runs inside the sandbox, as the agent's own user, on the image's Python.
"""

import json
import os
import sys


def settled(lines, changes):
    """Return the lines with each name in changes given its value, in its place or at the end, or taken out."""
    left = dict(changes)
    kept = []
    for line in lines:
        name = line.partition("=")[0].strip()
        if name not in changes:
            kept.append(line)
        elif (value := left.pop(name, None)) is not None:
            kept.append(f"{name}={value}")
    return kept + [f"{name}={value}" for name, value in left.items() if value is not None]


def main(path):
    """Rewrite the file in one rename."""
    changes = json.loads(sys.stdin.read(65536))
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        lines = []
    beside = f"{path}.new"
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write("".join(f"{line}\n" for line in settled(lines, changes)))
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


if __name__ == "__main__":
    main(sys.argv[1])
