"""A worker of a pull-wake subscription: wait for a wake event, claim, read what is new, ack.

    python docs/examples/pull_worker.py http://127.0.0.1:4437 mailer wake/mailer

Any number of them may run: one claims, the others go on waiting. With `--once` it ends after one wake.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
from typing import Any

import httpx

HEADERS = (
    {"Authorization": f"Bearer {os.environ['TIDEMARK_TOKEN']}"} if os.environ.get("TIDEMARK_TOKEN") else {}
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server")
    parser.add_argument("subscription")
    parser.add_argument("wake_stream")
    parser.add_argument("--once", action="store_true")
    asked = parser.parse_args()
    with httpx.Client(base_url=f"{asked.server}/v1/stream/", headers=HEADERS, timeout=60) as client:
        # What was announced before this worker began is still claimed: the first claim does not wait.
        offset = client.get(asked.wake_stream, params={"offset": "now"}).headers["Stream-Next-Offset"]
        while True:
            if work(client, asked.subscription) and asked.once:
                return
            answer = client.get(asked.wake_stream, params={"offset": offset, "live": "long-poll"})
            answer.raise_for_status()
            offset = answer.headers["Stream-Next-Offset"]


def work(client: httpx.Client, subscription: str) -> bool:
    """Claim and process until nothing is pending; whether there was anything."""
    worked, more = False, True
    while more:
        claimed = client.post(
            f"__ds/subscriptions/{subscription}/claim", json={"worker": socket.gethostname()}
        )
        if claimed.status_code == 409:  # ALREADY_CLAIMED or NO_PENDING_WORK
            return worked
        wake = claimed.raise_for_status().json()
        acks = [{"stream": each["path"], "offset": process(client, each)} for each in wake["streams"]]
        done = {"wake_id": wake["wake_id"], "generation": wake["generation"], "acks": acks, "done": True}
        token = {"Authorization": f"Bearer {wake['token']}"}
        answer = client.post(f"__ds/subscriptions/{subscription}/ack", json=done, headers=token)
        # FENCED: the lease ran out, and another worker has what is left.
        more = answer.status_code == 200 and answer.json()["next_wake"]
        worked = True
    return worked


def process(client: httpx.Client, stream: dict[str, Any]) -> str:
    """Everything behind the acked offset. Returns up to where."""
    offset: str = stream["acked_offset"]
    while offset < stream["tail_offset"]:
        page = client.get(stream["path"], params={"offset": offset}).raise_for_status()
        for message in page.json():
            print(json.dumps({"stream": stream["path"], "message": message}), flush=True)
        offset = page.headers["Stream-Next-Offset"]
    return offset


if __name__ == "__main__":
    main()
