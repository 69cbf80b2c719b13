"""`python -m tidemark.server.container`: the application on tables, bucket and queues that exist already.

One process for many waiting readers, where a function would be one for each (`container/template.yaml`). It
takes the functions' variables, and `HOST` (0.0.0.0), `PORT` (8080), the limits of connections, and
`DRAIN_SECONDS` (25): how long the requests that run at SIGTERM have to finish before they are ended.

With `DATA_DIR`, a folder on a volume, it is `tidemark serve`: a single node that needs nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tidemark.http.app import create_app
from tidemark.http.backend import many_at_once
from tidemark.http.security.open_server import own_pages_only
from tidemark.http.socket_session import Sockets
from tidemark.protocol.errors import ProtocolError
from tidemark.protocol.socket import PATH as SOCKET_PATH
from tidemark.server.connections import Limits
from tidemark.server.http_server import NotHealthy, loop_factory, serve
from tidemark.server.ports import listening_socket, port_of
from tidemark.server.request_log import RequestLog
from tidemark.server.serve import main as serve_embedded
from tidemark.server.serve import parse_port
from tidemark.service.stores import MEGABYTE, connect
from tidemark.settings import InvalidSetting, Settings, parse_seconds


@dataclass(frozen=True)
class ContainerConfiguration:
    """How it is to run, from the environment."""

    host: str = "0.0.0.0"  # noqa: S104 - a container's own network
    port: int = 8080
    #: How long requests have to finish once the end was asked for. ECS kills a task after 30 s.
    drain_seconds: float = 25.0
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ContainerConfiguration:
        """Raises InvalidSetting."""
        return cls(
            host=environment.get("HOST") or cls.host,
            port=parse_port(environment, cls.port),
            drain_seconds=parse_seconds(environment, "DRAIN_SECONDS", cls.drain_seconds, 3600),
            limits=Limits.from_environment(environment),
        )


#: The default address of a single node, the same as of a container in front of AWS.
_ADDRESS: Final = {"HOST": ContainerConfiguration.host, "PORT": str(ContainerConfiguration.port)}


def main() -> int:
    """The process's exit code."""
    if os.environ.get("DATA_DIR"):
        return serve_embedded(environment=_ADDRESS | os.environ)
    logging.basicConfig(format="%(message)s")
    try:
        configuration = ContainerConfiguration.from_environment(os.environ)
        settings = Settings.from_environment(os.environ)
        settings.authorization.check_not_open(configuration.host)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(configuration, settings))
    except (InvalidSetting, NotHealthy, OSError, ProtocolError) as error:
        print(f"tidemark: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


async def _serve(configuration: ContainerConfiguration, settings: Settings) -> None:
    stores = connect(settings, recent_bytes=64 * MEGABYTE)
    stores.check_format()
    backend = many_at_once(stores, replace(settings, socket_url=settings.socket_url or SOCKET_PATH))
    application = Sockets(own_pages_only(create_app(backend), settings), backend)
    level = logging.getLevelNamesMapping()[settings.log_level]
    log = RequestLog(sys.stderr, level, colour=False)
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
