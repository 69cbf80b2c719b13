"""`python -m tidemark.server.container`: the application on existing tables, bucket and queues of AWS.

One process serves many waiting readers; Lambda needs an environment for each (`container/template.yaml`).
The variables are those of the functions, `HOST` (0.0.0.0), `PORT` (8080), the limits of connections, and
`DRAIN_SECONDS` (25): seconds after SIGTERM in which running requests and proxy calls can finish.

With `DATA_DIR`, a folder on a volume, the container runs `tidemark serve`: a single node without AWS.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from dataclasses import replace
from typing import Final

from tidemark.http.app import create_app
from tidemark.http.backend import threaded_backend
from tidemark.http.security.origin import own_pages_only
from tidemark.http.socket_session import Sockets
from tidemark.protocol.errors import ProtocolError
from tidemark.protocol.socket import PATH as SOCKET_PATH
from tidemark.server.http_server import NotHealthy, loop_factory, serve
from tidemark.server.ports import listening_socket, port_of
from tidemark.server.request_log import RequestLog
from tidemark.server.serve import ServerConfiguration
from tidemark.server.serve import main as serve_embedded
from tidemark.service.stores import MEGABYTE, connect
from tidemark.settings import InvalidSetting, Settings

#: The defaults of HOST and PORT, in a container's own network.
ADDRESS: Final = {"HOST": "0.0.0.0", "PORT": "8080"}  # noqa: S104 - a container's own network
#: ECS kills a task 30 s after SIGTERM.
_DRAIN_SECONDS: Final = "25"


def main() -> int:
    """Run until SIGINT or SIGTERM. Return the exit code."""
    if os.environ.get("DATA_DIR"):
        return serve_embedded(environment=_environment())
    logging.basicConfig(format="%(message)s")
    try:
        environment = {"DRAIN_SECONDS": _DRAIN_SECONDS} | _environment()
        configuration = ServerConfiguration.from_environment(environment)
        settings = Settings.from_environment(os.environ)
        settings.authorization.check_not_open(configuration.host)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(configuration, settings))
    except (InvalidSetting, NotHealthy, OSError, ProtocolError) as error:
        print(f"tidemark: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _environment() -> dict[str, str]:
    return ADDRESS | {name: value for name, value in os.environ.items() if value}


async def _serve(configuration: ServerConfiguration, settings: Settings) -> None:
    stores = connect(settings, recent_bytes=64 * MEGABYTE)
    stores.check_format()
    backend = threaded_backend(stores, replace(settings, socket_url=settings.socket_url or SOCKET_PATH))
    application = Sockets(create_app(backend, own_pages_only(settings)), backend)
    level = logging.getLevelNamesMapping()[settings.log_level]
    log = RequestLog(sys.stderr, level)
    with listening_socket(configuration.host, configuration.port) as listener:
        ready = f"Tidemark is ready on port {port_of(listener)} (table {settings.table_name})"
        await serve(
            application,
            listener,
            lambda: print(ready, flush=True),
            asyncio.Event(),
            configuration.limits,
            log=log,
            grace_seconds=configuration.drain_seconds,
        )


if __name__ == "__main__":
    sys.exit(main())
