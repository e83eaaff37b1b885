"""What the kit `probe` runs in the place of Hermes: one turn with its model, or a gateway that waits.

The fixture `house` puts this file among the guest programs of its own copy of troupe.
"""

import http.client
import json
import os
import signal
import ssl
import sys

REHEARSAL = "model.rehearsal.internal"
HOME = "/state/hermes"


def ask(body):
    """Send the model a request through the proxy, as Hermes does, and return its answer's status and body."""
    headers = {"Content-Type": "application/json"}
    try:
        with open(f"{HOME}/config.yaml", encoding="utf-8") as file:
            provider = json.load(file)["providers"]["main"]
    except FileNotFoundError:
        connection = http.client.HTTPConnection("127.0.0.1", 3128, timeout=30)
        connection.request(
            "POST", f"http://{REHEARSAL}/v1/chat/completions", body, {"Host": REHEARSAL, **headers}
        )
    else:
        with open(f"{HOME}/.env", encoding="utf-8") as file:
            variables = dict(line.strip().split("=", 1) for line in file)
        host, _, path = provider["base_url"].removeprefix("https://").partition("/")
        trust = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
        connection = http.client.HTTPSConnection("127.0.0.1", 3128, timeout=30, context=trust)
        connection.set_tunnel(host, 443)
        headers["Authorization"] = f"Bearer {variables[provider['key_env']]}"
        connection.request("POST", f"/{path}/chat/completions", body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def turn(message, usage=None):
    """Give the model one message through the proxy, print its answer, and write how it went as Hermes does."""
    body = {"model": "rehearsal-1", "messages": [{"role": "user", "content": message}]}
    status, data = ask(json.dumps(body).encode())
    completed = status == 200
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
