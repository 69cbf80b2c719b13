"""`python -m tests.chaos.hurried`: the server, in which an hour is over in a little more than a minute.

What the janitor removes an hour after it was deleted, superseded or abandoned would outlive a campaign. The
times keep their order: a tail is remembered for less long than any write can be late, and nothing is removed
before the latest one has arrived.
"""

import importlib
import json
import os
import pkgutil
import sys
import threading
from http.server import ThreadingHTTPServer

from tests.stack.emulators import end_with_parent
from tidemark import janitor, log, service
from tidemark.log.due import Packing
from tidemark.protocol.socket import PATH

#: Of requests: a stop of 10 s, a delay of 7, the server's own tries of 11, and 30 s late make 58.
TAILS_MS = 5_000
RECLAIM_MS = 75_000
UPLOADS_MS = 75_000
#: With `lambda`: a JSON object of the variables that lead the handlers to the services, through proxies. S3
#: and SQS are the campaign's own.
PROXIES = "CHAOS_PROXIES"
#: With `lambda`: the engine's port, and that of the connections of sockets. Their proxies must know them
#: after a kill as well.
ENGINE_PORT, SOCKETS_PORT = "CHAOS_ENGINE_PORT", "CHAOS_SOCKETS_PORT"
#: The age of a batch that is packed.
PACK_AFTER_SECONDS = 75


#: What has the short times, by names that are final for the program, and not for this one.
TIMES = {"MAX_AGE_MS": TAILS_MS, "RECLAIM_AFTER_MS": RECLAIM_MS, "LAPSES_AFTER_MS": UPLOADS_MS}


def hurry() -> None:
    """In every module that has taken one of these by name."""
    found = set[str]()
    for package in (log, service, janitor):
        for each in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(each.name)
            for name in TIMES.keys() & vars(module).keys():
                setattr(module, name, TIMES[name])
                found.add(name)
    assert found == TIMES.keys(), found
    Packing.after_seconds = classmethod(small_packs)  # type: ignore[method-assign, assignment]
    if proxies := os.environ.get(PROXIES):
        _go_through(json.loads(proxies))


def _go_through(proxies: dict[str, str]) -> None:
    from tests.stack import dynamodb_server, websocket_api
    from tests.stack.engines import LocalServices
    from tidemark.server.ports import listening_socket

    port = int(os.environ[ENGINE_PORT])
    setattr(dynamodb_server, "listening_socket", lambda host, _: listening_socket(host, port))  # noqa: B010
    start = LocalServices.start

    def start_behind_proxies(services: LocalServices) -> None:
        services.only = ("dynamodb",)
        start(services)
        services.environment |= proxies

    LocalServices.start = start_behind_proxies  # type: ignore[method-assign, assignment]
    sockets_port = int(os.environ[SOCKETS_PORT])
    listen = lambda address, handler: ThreadingHTTPServer((address[0], sockets_port), handler)  # noqa: E731
    setattr(websocket_api, "ThreadingHTTPServer", listen)  # noqa: B010
    named = {"SOCKET_URL": PATH, "SOCKET_ENDPOINT": proxies["SOCKET_ENDPOINT"]}
    setattr(websocket_api.ManagementServer, "environment", named)  # noqa: B010


def small_packs(packing: type[Packing], seconds: float) -> Packing:
    """A stream gets several packs of several blocks within a campaign."""
    return packing(
        round(seconds * 1000),
        every_bytes=2_000,
        pack_bytes=32 * 1024,
        min_batches=4,
        block_bytes=4 * 1024,
        keep_replaced_ms=RECLAIM_MS,
    )


def main() -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    hurry()
    server = "tests.stack.__main__" if os.environ["VIA"] == "lambda" else "tidemark.server.serve"
    code = importlib.import_module(server).main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
