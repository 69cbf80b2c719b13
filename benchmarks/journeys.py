"""Count the functions and files of Tidemark that a request passes: `python -m benchmarks.journeys`.

Each journey is a sample event that goes through a function's own code to the local engines and back; the
process knows the stream's tail, as in a warm environment. The append and the long-poll are as on a deployed
stack: both pass CloudFront with a token, and the append has producer headers. The long-poll waits in the
`live` function until the notifier's message about an append wakes it.

`sys.setprofile` reports each call, on any thread: a function counts once, however often it is called, and
comprehensions do not count. A hop is a call from one file into another, counted once for each two functions.
`--list append` prints the functions of a journey in the order of their first calls, indented below their
callers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from types import CodeType, FrameType
from typing import Any

import uvicorn

from benchmarks.cpu import ENVIRONMENT, ROOT, Context, Handler, event_of, load_handler
from tests.stack.engines import LocalServices
from tidemark.log.schema import decode_write
from tidemark.wake import queue
from tidemark.wake.follow import Hub
from tidemark.wake.notifier import message_from_write
from tidemark.wake.queue import SETTLING_SECONDS

PACKAGE = str(ROOT / "shared" / "tidemark") + os.sep
COMPREHENSIONS = {"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"}
#: The journeys without token and edge: the function, and the event that is sent to it.
PLAIN = {
    "read": ("read", "get-catch-up.json"),
    "head": ("read", "head.json"),
    "notify": ("notifier", "stream-records.json"),
}
NAMES = ("append", *PLAIN, "long-poll")
#: The secret that signs the token of the sample events, and their origin secret.
AS_DEPLOYED = {
    "ALLOW_ANONYMOUS": "",
    "AUTH_SECRET": "the-secret-of-the-sample-events-and-of-no-stack",
    "EDGE_SECRET": "the-origin-secret-of-the-sample-events",
}
#: The function in which a request begins to wait.
WAITS = Hub.start_waiting.__code__
#: Many: on a busy machine most appends are so far apart that each finds the tail that it remembers stale.
ROUNDS = 50
LONG_POLLS = 5
#: Data never come fast: a message wakes each long-poll.
queue.__dict__["FAST_MS"] = -1
#: Shorter than the receive after which readers look by themselves: the long-poll must be woken.
PATIENCE_SECONDS = 15


@dataclass
class Passed:
    """Functions in the order of their first calls, the depth of each of these calls, and hops."""

    found: dict[CodeType, int] = field(default_factory=dict)
    hops: set[tuple[CodeType, CodeType]] = field(default_factory=set)

    def counts(self) -> tuple[int, int, int]:
        return len(self.found), len({code.co_filename for code in self.found}), len(self.hops)


class Watch:
    """The package's functions that run while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.waits = threading.Event()
        self.passed = Passed()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if not self.is_on or event != "call" or not is_counted(code):
            return
        callers, caller = [], frame.f_back
        while caller is not None:
            callers += [caller.f_code] if is_counted(caller.f_code) else []
            caller = caller.f_back
        if callers and callers[0].co_filename != code.co_filename:
            self.passed.hops.add((callers[0], code))
        self.passed.found.setdefault(code, len(callers))
        if code is WAITS:
            self.waits.set()

    def during(self, call: Callable[[], object]) -> Passed:
        self.passed, self.is_on = Passed(), True
        try:
            call()
        finally:
            self.is_on = False
        return self.passed


def is_counted(code: CodeType) -> bool:
    return code.co_filename.startswith(PACKAGE) and code.co_name not in COMPREHENSIONS


def answered(handler: Handler, event: dict[str, Any]) -> None:
    answer = handler(event, Context())
    if answer and answer.get("statusCode", 200) >= 300:
        raise AssertionError(f"{event.get('routeKey')}: {answer}")


class Producer:
    """Appends through the edge, each with the next sequence number: a repeated append is not stored."""

    def __init__(self, write: Handler, services: LocalServices) -> None:
        self._write = write
        self._numbers = count()
        self._records: SimpleQueue[Mapping[str, Any]] = SimpleQueue()
        services.followers.append(self._hear)

    def _hear(self, _table: str, record: Mapping[str, Any]) -> None:
        if message_from_write(decode_write(record)):
            self._records.put(record)

    def append(self) -> Mapping[str, Any]:
        """Append, and return the record in the table's stream."""
        event = event_of("post-append-edge.json")
        event["headers"]["producer-seq"] = str(next(self._numbers))
        answered(self._write, event)
        return self._records.get(timeout=PATIENCE_SECONDS)


@contextmanager
def live_function() -> Iterator[int]:
    """Serve the `live` function's application as its `run.sh` does; yield the port."""
    app = load_handler("live", "app")
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_level="warning", access_log=False, server_header=False)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the live function does not start"
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


class Reader:
    """A long-poll, in the form in which the Web Adapter sends its event. An append follows once it waits."""

    def __init__(self, watch: Watch, port: int, producer: Producer, notifier: Handler) -> None:
        self._watch = watch
        self._port = port
        self._producer = producer
        self._notifier = notifier

    def woken(self) -> None:
        event = event_of("get-long-poll-edge.json")
        adapter = {"x-amzn-request-context": json.dumps(event["requestContext"])}
        target = f"{event['rawPath']}?{event['rawQueryString']}"
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_SECONDS)) as connection:
            self._watch.waits.clear()
            connection.request("GET", target, headers=event["headers"] | adapter)
            assert self._watch.waits.wait(PATIENCE_SECONDS), "the long-poll does not wait"
            self._append()
            answer = connection.getresponse()
            if answer.status != 200:
                raise AssertionError(f"long-poll: {answer.status} {answer.read()!r}")

    def _append(self) -> None:
        """Append and notify in other environments, whose functions are no part of the journey."""
        sys.setprofile(None)
        answered(self._notifier, {"Records": [self._producer.append()]})
        sys.setprofile(self._watch)

    def twice(self) -> None:
        """Wake two long-polls, counted as one: a thread may end the first only during the second."""
        self.woken()
        self.woken()


def journeys(watch: Watch, services: LocalServices) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield each journey with its name, ready to run in a warm environment."""
    handlers = {name: load_handler(name) for name in ("write", "read", "notifier")}
    answered(handlers["write"], event_of("put-create.json"))
    os.environ.update(AS_DEPLOYED)
    producer = Producer(load_handler("write"), services)
    yield "append", producer.append
    for name, (function, event) in PLAIN.items():
        yield name, partial(answered, handlers[function], event_of(event))
    with live_function() as port:
        reader = Reader(watch, port, producer, handlers["notifier"])
        watch.during(reader.woken)
        time.sleep(SETTLING_SECONDS)
        yield "long-poll", reader.twice


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", choices=NAMES, help="print the functions of one journey")
    listed = parser.parse_args().list
    watch = Watch()
    with LocalServices() as services:
        name = f"journeys-{uuid.uuid4()}"
        own = {"TABLE_NAME": name, "BUCKET_NAME": name, "QUEUE_PREFIX": f"{name}-"}
        os.environ.update(ENVIRONMENT | services.environment | own)
        services.create_table(name)
        services.create_bucket(name)
        # The threads of the package's pools as well: they are made when they are first needed.
        threading.setprofile(watch)
        sys.setprofile(watch)
        for journey, call in journeys(watch, services):
            # The first ones are cold; in others, a clock or a thread may have had something to do.
            rounds = LONG_POLLS if journey == "long-poll" else ROUNDS
            least = min((watch.during(call) for _ in range(rounds)), key=Passed.counts)
            functions, files, hops = least.counts()
            print(f"{journey}: {functions} functions, {files} files, {hops} hops")
            if journey == listed:
                for code, depth in least.found.items():
                    place = Path(code.co_filename).relative_to(PACKAGE)
                    print(f"{'  ' * depth}{code.co_qualname}  ({place}:{code.co_firstlineno})")
        sys.setprofile(None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
