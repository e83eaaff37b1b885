"""A small shell that holds a runtime's exec open for a service, where that exec passes no signal on.

`setsid` keeps a signal to the shell's group from ending the runtime's side alone. A `wait` that a trap cut short (its
status is over 128) is waited again, and 127 then says that the first answer was the command's own.
"""

from __future__ import annotations

_HOLD = """\
pass() {{ {{ {passing}; }} </dev/null >/dev/null 2>&1; }}
trap 'cut=1; pass INT' INT; trap 'cut=1; pass TERM' TERM
setsid "$@" </dev/null &
child=$! status=
while :; do
    cut=; wait "$child"; now=$?
    [ "$now" = 127 ] && [ -n "$status" ] && break
    status=$now
    [ -n "$cut" ] && [ "$status" -gt 128 ] || break
done
exit "$status"
"""


def argv(words: list[str], *, passing: str, first: str = "") -> list[str]:
    """Return the command that runs words and ends with their status.

    passing are shell words that send the process inside the signal whose name is in $1; first are done before all.
    """
    return ["/bin/sh", "-c", f"{first}\n{_HOLD.format(passing=passing)}", "sh", *words]
