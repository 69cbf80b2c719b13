"""`python -m tidemark.server.container`: the application on existing tables, bucket and queues of AWS.

A process serves many waiting readers; Lambda needs an environment for each (`container/template.yaml`). The
container reads the variables of the functions, `HOST` (0.0.0.0), `PORT` (8080), the limits of connections,
and `DRAIN_SECONDS` (25), the time after SIGTERM for running requests and proxy calls.

With `DATA_DIR`, a folder on a volume, the container runs `tidemark serve`: a single node without AWS.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import Final

from tidemark.http.app import create_app
from tidemark.http.backend import threaded_backend
from tidemark.http.security.origin import own_pages_only
from tidemark.http.socket_session import Sockets
from tidemark.server import serve
from tidemark.server.http_server import loop_factory
from tidemark.service.stores import MEGABYTE, connect
from tidemark.settings import Settings

#: The defaults of HOST and PORT, in a container's own network.
ADDRESS: Final = {"HOST": "0.0.0.0", "PORT": "8080"}  # noqa: S104 - a container's own network
#: ECS kills a task 30 s after SIGTERM.
_DRAIN_SECONDS: Final = "25"


def main() -> int:
    """Run until SIGINT or SIGTERM. Return the exit code."""
    environment = ADDRESS | {name: value for name, value in os.environ.items() if value}
    if "DATA_DIR" in environment:
        return serve.main(environment=environment)
    return serve.run_configured(_run, {"DRAIN_SECONDS": _DRAIN_SECONDS} | environment)


def _run(configuration: serve.ServerConfiguration, settings: Settings, listener: socket.socket) -> int:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(configuration, settings, listener))
    return 0


async def _serve(
    configuration: serve.ServerConfiguration, settings: Settings, listener: socket.socket
) -> None:
    stores = connect(settings, recent_bytes=64 * MEGABYTE)
    stores.check_format()
    backend = threaded_backend(stores, settings)
    application = Sockets(create_app(backend, own_pages_only(settings)), backend)
    place, stopping = f"table {settings.table_name}", asyncio.Event()
    await serve.serve_logged(application, listener, configuration, settings, place=place, stopping=stopping)


if __name__ == "__main__":
    sys.exit(main())
