"""The moto process itself: `python -m tidemark.local.moto_server <listening descriptor>`.

moto's own server would do, but for three things: it takes a port and not a socket, it outlives its parent,
and it runs requests on threads without locks, so that of two conditional writes that race both can succeed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from tidemark.local.process import end_with_parent

WsgiApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class OneAtATime:
    """Lets one request run at a time, but for those that wait for a message in a queue."""

    def __init__(self, application: WsgiApplication) -> None:
        self._application = application
        self._lock = threading.Lock()

    def __call__(self, request: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if request.get("HTTP_X_AMZ_TARGET") == "AmazonSQS.ReceiveMessage":
            return self._application(request, start_response)
        with self._lock:
            return list(self._application(request, start_response))


class KeepAlive(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing: a line for each request would fill the log."""


def main(descriptor: int) -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    application = OneAtATime(DomainDispatcherApplication(create_backend_app))
    make_server(
        "127.0.0.1", 0, application, threaded=True, request_handler=KeepAlive, fd=descriptor
    ).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
