"""moto as a judge: DynamoDB, S3 and SQS by others, in memory, in a thread of this process.

Its server runs requests on threads without locks, so that of two conditional writes that race both can
succeed: here one request runs at a time, but for those that wait for a message in a queue.
"""

import os
import threading
from collections.abc import Iterable
from typing import Any

from tests.ports import free_port
from tests.stack.emulators import environment_for
from tests.stack.engines import ALL, LocalServices


class MotoServices(LocalServices):
    """All three by moto."""

    def start(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        class KeepAlive(WSGIRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_request(self, *_: object) -> None:
                """A line for each request would fill the output."""

        backend, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

        def one_at_a_time(request: dict[str, Any], respond: Any) -> Iterable[bytes]:
            if request.get("HTTP_X_AMZ_TARGET") == "AmazonSQS.ReceiveMessage":
                at_once: Iterable[bytes] = backend(request, respond)
                return at_once
            with lock:
                return list(backend(request, respond))

        port = free_port()
        self._server = make_server("127.0.0.1", port, one_at_a_time, threaded=True, request_handler=KeepAlive)
        threading.Thread(target=self._server.serve_forever, name="moto", daemon=True).start()
        self.environment = environment_for(dict.fromkeys(ALL, f"http://127.0.0.1:{port}"), os.environ)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
