"""One turn of the agent, told as small JSON: prompt on stdin, {"completed", "model", "reply", "error"} on stdout.

The arguments are the kit's self-test command; {message} and {usage} in them are replaced. `hermes -z` ends with
status 0 on most failures and prints the failure as if it were a reply; the truth is in the file that --usage-file
names. This runs inside the sandbox: the host takes its answer as hostile all the same.
"""

import json
import os
import subprocess
import sys
import tempfile

REPLY_LIMIT = 4000


def main():
    """Run the turn and print how it went."""
    prompt = sys.stdin.read(100_000)
    with tempfile.TemporaryDirectory() as folder:
        usage_file = os.path.join(folder, "usage.json")
        done = subprocess.run(
            [word.replace("{message}", prompt).replace("{usage}", usage_file) for word in sys.argv[1:]],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
        try:
            with open(usage_file, encoding="utf-8") as file:
                usage = json.load(file)
        except (OSError, ValueError):
            usage = {}
    completed = done.returncode == 0 and bool(usage.get("completed")) and not usage.get("failed")
    said = done.stdout.strip()
    error = (
        "" if completed else (str(usage.get("failure") or "") or said or done.stderr.strip() or "no answer")
    )
    answer = {
        "completed": completed,
        "model": str(usage.get("model") or "")[:200],
        "reply": said[:REPLY_LIMIT] if completed else "",
        "error": error[:REPLY_LIMIT],
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
