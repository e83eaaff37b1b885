"""What the kit `probe` runs in the place of Hermes: one turn with the rehearsal model, or a gateway that waits.

The fixture `house` puts this file among the guest programs of its own copy of troupe.
"""

import http.client
import json
import signal
import sys

URL = "http://model.rehearsal.internal/v1/chat/completions"


def turn(message, usage=None):
    """Give the model one message through the proxy, print its answer, and write how it went as Hermes does."""
    body = {"model": "rehearsal-1", "messages": [{"role": "user", "content": message}]}
    connection = http.client.HTTPConnection("127.0.0.1", 3128, timeout=30)
    headers = {"Host": "model.rehearsal.internal", "Content-Type": "application/json"}
    connection.request("POST", URL, json.dumps(body).encode(), headers)
    answer = connection.getresponse()
    data = answer.read()
    completed = answer.status == 200
    said = (
        json.loads(data)["choices"][0]["message"]["content"] if completed else data.decode(errors="replace")
    )
    print(said)
    if usage is not None:
        with open(usage, "w", encoding="utf-8") as file:
            json.dump({"completed": completed, "failed": not completed, "model": "rehearsal-1"}, file)
    return 0 if completed else 1


def gateway():
    """Wait for INT or TERM, as a gateway does."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    print("the gateway runs", flush=True)
    while True:
        signal.pause()


def chat():
    """Answer every line of the terminal by one turn."""
    for line in sys.stdin:
        turn(line.strip())
    return 0


if __name__ == "__main__":
    sys.exit({"turn": turn, "gateway": gateway, "chat": chat}[sys.argv[1]](*sys.argv[2:]))
