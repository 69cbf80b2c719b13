"""`python -m tidemark.local`: the whole system on this machine, in one command.

Environment: `PORT` (4437), `HOST` (127.0.0.1), `DATA_DIR` (.data), `VIA` (asgi, or lambda: through the
deployed handlers), `EDGE` (true: `VIA=lambda` streams events, as behind CloudFront), `LONG_POLL_SECONDS`,
`JANITOR_SECONDS` (300), `DYNOXIDE_PATH`, and boto3's own `AWS_ENDPOINT_URL_*` for services that are not to
be started here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Never

from botocore.exceptions import BotoCoreError, ClientError

from tidemark.local.configuration import LocalConfiguration, InvalidConfiguration, Via
from tidemark.local.dynoxide import RETENTION_SECONDS
from tidemark.local.edge import Edge, load_application
from tidemark.local.engines import ROOT, LocalServices
from tidemark.local.environments import FunctionNotLoaded
from tidemark.local.gateway import Gateway
from tidemark.local.lock import DataDirectoryInUse
from tidemark.local.ports import listening_socket, port_of
from tidemark.local.process import EngineFailed
from tidemark.local.pump import BY_TRIGGER_ALONE, Pump, beside
from tidemark.local.schedule import PeriodicTask, ScheduledFunction, StreamRecordTrimming
from tidemark.local.server import Application, NotHealthy, loop_factory, serve
from tidemark.local.template import InvalidTemplate, Template, load_template
from tidemark.settings import InvalidSetting, Settings
from tidemark.wake.hub import Hub

#: What can keep it from starting, said in one line.
REFUSALS = (
    BotoCoreError,
    ClientError,
    DataDirectoryInUse,
    EngineFailed,
    FunctionNotLoaded,
    InvalidTemplate,
    NotHealthy,
    OSError,
)


def main(root: Path = ROOT) -> int:
    """The process's exit code. `root` holds `template.yaml`, `functions/` and `node_modules/`."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, _interrupt)
    try:
        configuration = LocalConfiguration.from_environment(os.environ)
        settings = _settings(configuration)
        return _start(configuration, settings, root)
    except (InvalidConfiguration, InvalidSetting) as error:
        _say(error)
        return 2
    except REFUSALS as error:
        _say(error)
        return 1
    except KeyboardInterrupt:
        return 0


def _settings(configuration: LocalConfiguration) -> Settings:
    """Raises InvalidSetting. On loopback nobody else can come in, so nothing has to be asked
    for by name: the functions, that do not know where they are reached, hear of it here."""
    settings = Settings.from_environment(os.environ)
    settings.authorization.check_not_open(configuration.host)
    if not settings.authorization.is_on:
        os.environ["ALLOW_ANONYMOUS"] = "true"
    # There is no CloudWatch to read the lines that metrics are.
    os.environ.setdefault("POWERTOOLS_METRICS_DISABLED", "true")
    return settings


def _start(configuration: LocalConfiguration, settings: Settings, root: Path) -> int:
    try:
        listener = listening_socket(configuration.host, configuration.port)
    except OSError as error:
        _say(f"port {configuration.port} on {configuration.host} cannot be used: {error.strerror}")
        return 1
    system = System(configuration, settings, root)
    with listener, LocalServices(configuration.data_dir, on_failure=system.fail, root=root) as services:
        try:
            return system.run(services, listener)
        finally:
            # From here on nothing is left to interrupt.
            for name in (signal.SIGINT, signal.SIGTERM):
                signal.signal(name, signal.SIG_IGN)


class System:
    """The running whole: what is started after the engines, and ended before them."""

    def __init__(self, configuration: LocalConfiguration, settings: Settings, root: Path) -> None:
        self.configuration = configuration
        self.settings = settings
        self.root = root
        self._failure: str | None = None
        self._stopping: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, services: LocalServices, listener: socket.socket) -> int:
        """The exit code. Raises what REFUSALS names."""
        for notice in services.notices:
            _say(notice)
        os.environ.update(services.environment)
        services.create_table(self.settings.table_name)
        services.create_bucket(self.settings.bucket_name)
        template = load_template(self.root / "template.yaml")
        application, hub = self._application(template)
        rounds: list[PeriodicTask | Pump] = [*self._rounds(template, services), *self._pumps(template, hub)]
        try:
            for each in rounds:
                each.start()
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._serve(application, listener, services))
        finally:
            for each in rounds:
                each.stop()
            if isinstance(application, Gateway | Edge):
                application.close()
        return 1 if self._failure else 0

    def fail(self, what: str) -> None:
        """An engine ended by itself: nothing can be acknowledged any more. From any thread."""
        self._failure = what
        _say(f"{what}; stopping")
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)

    def _rounds(self, template: Template, services: LocalServices) -> list[PeriodicTask]:
        """What comes round beside the server."""
        interval = self.configuration.janitor_seconds
        if not interval:
            return []
        functions = [ScheduledFunction(template.functions[name], interval) for name in template.scheduled]
        return [*functions, StreamRecordTrimming(services.trim_stream_records, RETENTION_SECONDS, interval)]

    def _pumps(self, template: Template, hub: Hub | None) -> list[Pump]:
        """What hands on the table's stream."""
        table, functions = self.settings.table_name, template.functions
        demand = beside(hub) if hub else BY_TRIGGER_ALONE
        return [Pump(each, functions[each.function], table, demand) for each in template.triggers]

    def _application(self, template: Template) -> tuple[Application, Hub | None]:
        """With the hub of its readers, where they wait in this very process."""
        if self.configuration.via is Via.LAMBDA:
            return self._functions(template), None
        # Only one of the two is ever loaded.
        from tidemark.http.app import create_app
        from tidemark.local.application import create_local_backend

        backend = create_local_backend(self.settings)
        return create_app(backend, with_metrics=True), backend.hub

    def _functions(self, template: Template) -> Gateway | Edge:
        """As they are reached in a deployment."""
        if not self.configuration.edge or template.streaming is None:
            return Gateway(template)
        return Edge(Gateway(template), load_application(template.functions[template.streaming]))

    async def _serve(
        self, application: Application, listener: socket.socket, services: LocalServices
    ) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        if self._failure is not None:
            return
        line = self._ready_line(port_of(listener), services)
        limits = self.configuration.limits
        await serve(application, listener, lambda: print(line, flush=True), self._stopping, limits)

    def _ready_line(self, port: int, services: LocalServices) -> str:
        url = f"http://{_bracketed(self.configuration.host)}:{port}"
        where = f"data in {self.configuration.data_dir}" if services.durable else "NOTHING IS KEPT"
        served = f"via {self.configuration.via.value}; {services.description}; {where}"
        return f"Tidemark is ready at {url} ({served})"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _interrupt(_number: int, _frame: FrameType | None) -> Never:
    raise KeyboardInterrupt


def _say(what: object) -> None:
    print(f"tidemark: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of requests that were cut off may still wait for an answer of an engine that is gone.
    os._exit(code)
