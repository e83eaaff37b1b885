"""Become a command inside, on a sandbox that is the right one and was started by troupe; a JSON says which.

It comes in as many arguments as it takes, each of them short enough for Linux.

The first line on stderr is then the nonce: a runtime whose own failures have a command's statuses can be told apart.
Who else is asked to run here says nothing and ends: a sandbox made anew under the same name, or one that the runtime
started by itself, has not been given this identity since it started.
"""

import json
import os
import resource
import sys

PLACE = "/run/troupe/guest/identity"
BOOT = "/proc/sys/kernel/random/boot_id"


def boot():
    """Return which start of the machine this is, where that can be read."""
    try:
        with open(BOOT, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def main():
    """Check, say the nonce, and become the command."""
    told = json.loads(b"".join(map(os.fsencode, sys.argv[1:])))
    try:
        with open(PLACE, encoding="utf-8") as file:
            found = file.read()
    except OSError:
        found = ""
    if found != f"{told['identity']} {boot()}":
        print("troupe: this sandbox was not started by troupe", file=sys.stderr)
        return 125
    for name, most in (("RLIMIT_NOFILE", told["open_files"]), ("RLIMIT_NPROC", told["processes"])):
        resource.setrlimit(getattr(resource, name), (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(told["cwd"])
    if told["pid_file"]:
        with open(told["pid_file"], "w", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
    if told["nonce"]:
        os.write(2, f"{told['nonce']}\n".encode())
    command = told["argv"]
    os.environ.clear()
    os.environ.update(told["env"])
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main())
