"""The functions in the template that make custom resources, called as CloudFormation calls them."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from tests.infra.test_template import TEMPLATE


def answers_of(function: str, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    """What the function sends to CloudFormation, here a server."""
    received: list[dict[str, Any]] = []

    class CloudFormation(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            assert not self.headers["Content-Type"], "the presigned address is signed without one"
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    code: dict[str, Any] = {}
    exec(TEMPLATE["Resources"][function]["Properties"]["Code"]["ZipFile"], code)
    with HTTPServer(("127.0.0.1", 0), CloudFormation) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        for request in requests:
            code["handler"](request | {"ResponseURL": f"http://127.0.0.1:{server.server_port}/a?b=c"}, None)
        server.shutdown()
        thread.join()
    return received
