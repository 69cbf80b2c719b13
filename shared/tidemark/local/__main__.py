"""`python -m tidemark.local`: the server (`server/serve.py`), or with `VIA=lambda` the deployed handlers
behind an imitation of what is in front of them on AWS.

Environment of `VIA=lambda`, beside the server's: `EDGE` (true: reads that wait go to the live function, as
behind CloudFront). Its data is below `DATA_DIR/lambda`: the server has blobs as files, and the handlers have
them in an emulator of S3.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Never

from botocore.exceptions import BotoCoreError, ClientError

from tidemark.aws.sqs import WorkQueue, sqs_client
from tidemark.cold_start import spare_what_is_loaded
from tidemark.engine.sqlite_file import UnusableDatabase
from tidemark.http.security.open_server import own_pages_only
from tidemark.local.engines import ROOT, LocalServices
from tidemark.local.environments import FunctionNotLoaded
from tidemark.local.gateway import Edge, Gateway, load_application
from tidemark.local.process import EngineFailed
from tidemark.local.template import InvalidTemplate, Template, load_template
from tidemark.local.triggers import Pump, QueuePump, ScheduledFunction
from tidemark.protocol.errors import FormatTooNew
from tidemark.server import Application
from tidemark.server.configuration import InvalidConfiguration, LocalConfiguration, Via
from tidemark.server.http_server import WILDCARDS, NotHealthy, loop_factory, serve
from tidemark.server.lock import DataDirectoryInUse
from tidemark.server.ports import listening_socket, port_of
from tidemark.server.request_log import RequestLog, wants_colour, write_audit_lines
from tidemark.server.serve import main as serve_embedded
from tidemark.service.stores import connect
from tidemark.settings import InvalidSetting, Settings
from tidemark.subscriptions.pending import recover

#: The errors that can keep it from starting; each is printed as one line.
REFUSALS = (
    BotoCoreError,
    ClientError,
    DataDirectoryInUse,
    EngineFailed,
    FormatTooNew,
    FunctionNotLoaded,
    InvalidTemplate,
    NotHealthy,
    OSError,
    UnusableDatabase,
)


def main(root: Path = ROOT) -> int:
    """The process's exit code. `root` holds `template.yaml`, `functions/` and `node_modules/`."""
    if (os.environ.get("VIA") or Via.ASGI.value) == Via.ASGI.value:
        return serve_embedded()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, _interrupt)
    try:
        configuration = LocalConfiguration.from_environment(os.environ)
        settings = Settings.from_environment(os.environ)
        settings.authorization.check_not_open(configuration.host)
        prepare_environment(settings, configuration)
        return _start(configuration, settings, root)
    except (InvalidConfiguration, InvalidSetting) as error:
        _say(error)
        return 2
    except REFUSALS as error:
        _say(error)
        return 1
    except KeyboardInterrupt:
        return 0


def prepare_environment(settings: Settings, configuration: LocalConfiguration) -> None:
    """Sets what the functions read when they are loaded. Only call it once `check_not_open` has passed."""
    if not settings.authorization.is_on:
        # The server listens on loopback, which the functions cannot know: nobody else can reach them.
        os.environ["ALLOW_ANONYMOUS"] = "true"
    # Metrics are lines for CloudWatch, and there is none.
    os.environ.setdefault("POWERTOOLS_METRICS_DISABLED", "true")
    if settings.log_level == "INFO":
        # The server logs each request: the function's own JSON line would be a second one.
        os.environ["LOG_LEVEL"] = "WARNING"
    if configuration.edge and not settings.authorization.has_edge:
        # As the stack does: functions believe what the edge says of a request by the origin secret.
        os.environ["EDGE_SECRET"] = secrets.token_hex(32)


def _start(configuration: LocalConfiguration, asked: Settings, root: Path) -> int:
    try:
        listener = listening_socket(configuration.host, configuration.port)
    except OSError as error:
        _say(f"{error}; choose another HOST or PORT")
        return 1
    # Known once the port is; the functions read them when they are loaded.
    host = socket.gethostname() if configuration.host in WILDCARDS else configuration.host
    os.environ.setdefault("PUBLIC_URL", _url_of(host, listener))
    data_dir = configuration.data_dir / "lambda"
    os.environ.setdefault("WEBHOOK_KEYS", str(data_dir / "webhook-keys"))
    # The environment may hold other values by now, which are for the functions (`prepare_environment`).
    settings = replace(
        Settings.from_environment(os.environ), log_level=asked.log_level, authorization=asked.authorization
    )
    system = System(configuration, settings, root)
    services = LocalServices(data_dir, on_failure=system.fail)
    with listener, services:
        try:
            return system.run(services, listener)
        finally:
            # From here on nothing is left to interrupt.
            for name in (signal.SIGINT, signal.SIGTERM):
                signal.signal(name, signal.SIG_IGN)


class System:
    """The running whole: what is started after the engines, and stopped before them."""

    def __init__(self, configuration: LocalConfiguration, settings: Settings, root: Path) -> None:
        self.configuration = configuration
        self.settings = settings
        self.root = root
        self._failure: str | None = None
        self._stopping: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, services: LocalServices, listener: socket.socket) -> int:
        """The exit code. Raises what REFUSALS names."""
        os.environ.update(services.environment)
        services.create_table(self.settings.table_name)
        services.create_bucket(self.settings.bucket_name)
        queue_url = services.create_queue(f"{self.settings.table_name}-subscriptions")
        os.environ["SUBSCRIPTIONS_QUEUE_URL"] = queue_url
        stores = connect(self.settings)
        stores.check_format(raises=True)
        template = load_template(self.root / "template.yaml")
        application = self._application(template)
        tasks = self._background_tasks(template, services, queue_url)
        try:
            for task in tasks:
                task.start()
            # A kill loses the records of the table that the trigger had not yet.
            recover(stores, WorkQueue(sqs_client, queue_url).send)
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._serve(application, listener))
        finally:
            for task in tasks:
                task.stop()
            application.close()
        return 1 if self._failure else 0

    def fail(self, what: str) -> None:
        """An engine has ended by itself, so nothing can be acknowledged any more. Called from any thread."""
        self._failure = what
        _say(f"{what}; stopping")
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)

    def _application(self, template: Template) -> Gateway | Edge:
        """Raises FunctionNotLoaded."""
        gateway = Gateway(template)
        if not self.configuration.edge or template.streaming is None:
            return gateway
        streaming = load_application(template.functions[template.streaming])
        return Edge(gateway, streaming, os.environ.get("EDGE_SECRET", ""))

    def _background_tasks(
        self, template: Template, services: LocalServices, queue_url: str
    ) -> list[ScheduledFunction | Pump | QueuePump]:
        """The janitor and its like, unless they are turned off, and what triggers do on AWS."""
        functions, interval = template.functions, self.configuration.janitor_seconds
        tasks: list[ScheduledFunction | Pump | QueuePump] = [
            ScheduledFunction(functions[name], interval) for name in template.scheduled if interval
        ]
        for trigger in template.triggers:
            pump = Pump(trigger, functions[trigger.function], self.settings.table_name)
            services.followers.append(pump.tell)
            tasks.append(pump)
        tasks += [QueuePump(functions[each.function], queue_url, each.batch_size) for each in template.queues]
        return tasks

    async def _serve(self, application: Application, listener: socket.socket) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        if self._failure is not None:
            return
        url, via = _url_of(self.configuration.host, listener), self.configuration.via.value
        line = f"Tidemark is ready at {url} (via {via}; data in {self.configuration.data_dir}/lambda)"
        level = logging.getLevelNamesMapping()[self.settings.log_level]
        log = RequestLog(sys.stderr, level, colour=wants_colour(sys.stderr, os.environ))
        write_audit_lines(sys.stderr)
        limits = self.configuration.limits
        spare_what_is_loaded()

        def say_ready() -> None:
            print(line, flush=True)

        application = own_pages_only(application, self.settings)
        await serve(application, listener, say_ready, self._stopping, limits, log=log)


def _url_of(host: str, listener: socket.socket) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port_of(listener)}"


def _interrupt(_number: int, _frame: FrameType | None) -> Never:
    raise KeyboardInterrupt


def _say(what: object) -> None:
    print(f"tidemark: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of requests that were cut off may still wait for a reply from an engine that is gone.
    os._exit(code)
