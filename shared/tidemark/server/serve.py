"""`tidemark serve`: the whole system in this process, on one data directory.

Environment: `PORT` (4437), `HOST` (127.0.0.1), `DATA_DIR` (.data), `LONG_POLL_SECONDS`, `LOG_LEVEL` (WARNING;
INFO logs every request), `JANITOR_SECONDS` (300; 0 turns the janitor off), `DRAIN_SECONDS` (1).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tidemark.engine.sqlite_file import MEMORY
from tidemark.http.app import create_app
from tidemark.http.security.origin import own_pages_only
from tidemark.http.socket_session import Sockets
from tidemark.protocol.errors import ProtocolError
from tidemark.protocol.socket import PATH as SOCKET_PATH
from tidemark.server import Application
from tidemark.server.blob_urls import BlobUrls
from tidemark.server.connections import Limits
from tidemark.server.http_server import GRACE_SECONDS, WILDCARDS, NotHealthy, loop_factory, serve
from tidemark.server.ports import LOOPBACK, listening_socket, locked, port_of
from tidemark.server.request_log import RequestLog, report, write_audit_lines
from tidemark.server.system import EmbeddedSystem
from tidemark.settings import InvalidSetting, Settings, parse_choice, parse_seconds

#: Python's switch interval. With the default of 5 ms, responses wait longer after their commit.
_SWITCH_SECONDS: Final = 0.0005
#: The errors that can keep a server from starting.
REFUSALS: Final = (NotHealthy, OSError, ProtocolError)


@dataclass(frozen=True)
class ServerConfiguration:
    """The settings of the server's process, from the environment."""

    host: str = "127.0.0.1"
    #: 0 takes any free port.
    port: int = 4437
    data_dir: Path = Path(".data")
    #: The interval of the janitor; 0 turns it off.
    janitor_seconds: float = 300.0
    #: Seconds after SIGTERM in which running requests and proxy calls can finish.
    drain_seconds: float = GRACE_SECONDS
    #: The limits of each connection, and of the number of connections.
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ServerConfiguration:
        """Raises InvalidSetting."""
        if parse_choice(environment, "VIA", ("asgi", "lambda"), "asgi") == "lambda":
            raise InvalidSetting(
                "VIA=lambda needs a clone of the repository: run `VIA=lambda make run` there"
            )
        # If batches are packed without delay, the packer looks for them every second.
        interval = 1.0 if environment.get("PACK_AFTER_SECONDS") == "0" else cls.janitor_seconds
        return cls(
            host=environment.get("HOST") or cls.host,
            port=parse_port(environment, cls.port),
            data_dir=Path(environment.get("DATA_DIR") or cls.data_dir),
            janitor_seconds=parse_seconds(environment, "JANITOR_SECONDS", interval, 86_400),
            drain_seconds=parse_seconds(environment, "DRAIN_SECONDS", cls.drain_seconds, 3600),
            limits=Limits.from_environment(environment),
        )


def parse_port(environment: Mapping[str, str], default: int) -> int:
    text = environment.get("PORT") or str(default)
    if not (text.isascii() and text.isdigit()) or int(text) > 65535:
        raise InvalidSetting(f"PORT must be a number from 0 to 65535, got {text!r}")
    return int(text)


def main(*, in_memory: bool = False, environment: Mapping[str, str] = os.environ) -> int:
    def run(configuration: ServerConfiguration, settings: Settings, listener: socket.socket) -> int:
        sys.setswitchinterval(_SWITCH_SECONDS)
        if in_memory:
            with tempfile.TemporaryDirectory(prefix="tidemark-") as folder:
                return _run(configuration, settings, None, Path(folder), listener)
        data_dir = configuration.data_dir
        with locked(data_dir):
            return _run(configuration, settings, data_dir, data_dir, listener)

    return run_configured(run, environment)


def run_configured(
    run: Callable[[ServerConfiguration, Settings, socket.socket], int],
    environment: Mapping[str, str],
    refusals: tuple[type[Exception], ...] = REFUSALS,
) -> int:
    """Call `run` and return its exit code; 2 for an invalid setting, or 1 for another error that prevents the
    start. The error is one line on standard error."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.default_int_handler)  # Raises KeyboardInterrupt.
    try:
        configuration = ServerConfiguration.from_environment(environment)
        settings = Settings.from_environment(environment)
        settings.authorization.check_not_open(configuration.host)
        settings = replace(settings, socket_url=settings.socket_url or SOCKET_PATH)
        with listening_socket(configuration.host, configuration.port) as listener:
            return run(configuration, settings, listener)
    except InvalidSetting as error:
        report(f"tidemark: {error}")
        return 2
    except refusals as error:
        report(f"tidemark: {error}")
        return 1
    except KeyboardInterrupt:
        return 0


def addressed(settings: Settings, configuration: ServerConfiguration, listener: socket.socket) -> Settings:
    """The settings with a public URL: theirs, or the listener's."""
    host = socket.gethostname() if configuration.host in WILDCARDS else configuration.host
    return replace(settings, public_url=settings.public_url or _url_of(host, listener))


def _run(
    configuration: ServerConfiguration,
    settings: Settings,
    data_dir: Path | None,
    folder: Path,
    listener: socket.socket,
) -> int:
    settings = addressed(settings, configuration, listener)
    settings = replace(settings, webhook_keys=settings.webhook_keys or str(folder / "webhook-keys"))
    system = EmbeddedSystem(settings, data_dir, folder / "blobs")
    if data_dir:  # Meanwhile the application is made.
        threading.Thread(target=system.database.lengthen_log, name="tidemark-log").start()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(configuration, system, listener))
    finally:
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.SIG_IGN)
        system.close()
    return 0


async def _serve(configuration: ServerConfiguration, system: EmbeddedSystem, listener: socket.socket) -> None:
    application = _application(system, with_metrics=True)
    is_kept = system.database.path != MEMORY
    place = f"data in {configuration.data_dir}" if is_kept else "in memory: NOTHING IS KEPT"
    with system.working(configuration.janitor_seconds):
        try:
            await serve_logged(
                application, listener, configuration, system.settings, place=place, stopping=asyncio.Event()
            )
        finally:
            logging.disable()  # Workers are cut off at any point, and their errors mean nothing.


def _application(system: EmbeddedSystem, *, with_metrics: bool = False) -> Application:
    served = create_app(system.backend, own_pages_only(system.settings), with_metrics=with_metrics)
    return BlobUrls(Sockets(served, system.backend), system.blobs)


async def serve_logged(
    application: Application,
    listener: socket.socket,
    configuration: ServerConfiguration,
    settings: Settings,
    *,
    place: str,
    stopping: asyncio.Event,
) -> None:
    """Serve, print a line when ready, and log requests to standard error. `place` names where the data is."""
    level = logging.getLevelNamesMapping()[settings.log_level]
    log = RequestLog(sys.stderr, level)
    write_audit_lines(sys.stderr)
    line = f"Tidemark is ready at {_url_of(configuration.host, listener)} ({place})"
    print_ready: Callable[[], None] = lambda: print(line, flush=True)  # noqa: E731
    limits, drain_seconds = configuration.limits, configuration.drain_seconds
    await serve(application, listener, print_ready, stopping, limits, log=log, grace_seconds=drain_seconds)


def _url_of(host: str, listener: socket.socket) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port_of(listener)}"


#: Requests that still run after this time at the end are cut off.
_GRACE_SECONDS: Final = 0.05
_READY_SECONDS: Final = 60.0


@contextmanager
def server_in_memory(settings: Settings | None = None) -> Iterator[str]:
    """Run an empty server until the end of the block. Yield its URL."""
    ready = threading.Event()
    with listening_socket(LOOPBACK, 0) as listener, tempfile.TemporaryDirectory(prefix="tidemark-") as folder:
        url = f"http://{LOOPBACK}:{port_of(listener)}"
        asked = settings or Settings()
        keys = asked.webhook_keys or f"{folder}/webhook-keys"
        asked = replace(asked, public_url=url, webhook_keys=keys, socket_url=SOCKET_PATH)
        system = EmbeddedSystem(asked, None, Path(folder) / "blobs")
        loop, stopping = asyncio.new_event_loop(), asyncio.Event()

        async def run() -> None:
            application = _application(system)
            with system.working(janitor_seconds=0):
                await serve(application, listener, ready.set, stopping, grace_seconds=_GRACE_SECONDS)

        thread = threading.Thread(target=loop.run_until_complete, args=(run(),), name="tidemark", daemon=True)
        thread.start()
        try:
            ready.wait(_READY_SECONDS)
            yield url
        finally:
            loop.call_soon_threadsafe(stopping.set)
            thread.join()
            loop.close()
            system.close()
