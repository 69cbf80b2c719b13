"""API Gateway's side of a WebSocket API, as far as a function sees it: `POST` and `DELETE` of
`/<stage>/@connections/<id>`."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

CONNECTIONS = "/stage/@connections/"


class ManagementApi:
    """Frames by connection. A post to one that is in `refused` gets that status; 410 says that it is gone.
    One in `down` cannot be cut off either."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}/stage"
        self.frames: dict[str, list[str]] = defaultdict(list)
        self.refused: dict[str, int] = {}
        self.down: dict[str, int] = {}
        self.posts = 0

    def messages(self, connection_id: str) -> list[dict[str, Any]]:
        """All since the last time of asking, as a client reads them."""
        sent = map(json.loads, self.frames.pop(connection_id, ()))
        return [each for frame in sent for each in (frame if isinstance(frame, list) else [frame])]

    def answer(self, path: str, body: bytes | None) -> int:
        """To a POST, or, without a body, to a DELETE."""
        assert path.startswith(CONNECTIONS), path
        connection_id = path.removeprefix(CONNECTIONS)
        status = self.refused.get(connection_id, 200)
        if connection_id in self.down:
            return self.down[connection_id]
        if body is None:
            self.refused[connection_id] = 410
            return 410 if status == 410 else 204
        self.posts += 1
        if status == 200:
            self.frames[connection_id].append(body.decode())
        return status


@contextmanager
def management_api() -> Iterator[ManagementApi]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.reply(api.answer(unquote(self.path), self.rfile.read(int(self.headers["Content-Length"]))))

        def do_DELETE(self) -> None:
            self.reply(api.answer(unquote(self.path), None))

        def reply(self, status: int) -> None:
            """Nothing for a success."""
            reply = b"" if status < 300 else b'{"message": "refused"}'
            self.send_response(status)
            if status != 204:
                self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    api = ManagementApi(server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
