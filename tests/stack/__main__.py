"""`python -m tests.stack` is the server of `VIA=lambda make run`: the deployed handlers behind an imitation
of API Gateway, of CloudFront and of the triggers, with emulators of DynamoDB, SQS and S3.

The environment is the server's and `EDGE` (true: long-polls and event streams go to the live function, as
behind CloudFront). The data is below `DATA_DIR/lambda`, with blobs in the emulator of S3.
"""

import asyncio
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from tests.stack.emulators import ROOT, EngineFailed
from tests.stack.engines import LocalServices
from tests.stack.environments import FunctionNotLoaded
from tests.stack.gateway import Edge, Gateway, behind, load_application
from tests.stack.template import Template, load_template
from tests.stack.triggers import Pump, QueuePump, ScheduledFunction
from tests.stack.websocket_api import Connections, ManagementServer
from tidemark.aws.sqs import Queues, sqs_client
from tidemark.http.security.origin import own_pages_only
from tidemark.log.buckets import pages_of_records
from tidemark.log.read import load_last
from tidemark.log.schema import PLAIN_EPOCH, log_pk
from tidemark.protocol.stream_key import PLAIN_BUCKET
from tidemark.server import Application, serve
from tidemark.server.http_server import loop_factory
from tidemark.server.request_log import report
from tidemark.server.serve import ServerConfiguration
from tidemark.service.stores import Stores, connect
from tidemark.settings import Settings, parse_boolean
from tidemark.subscriptions.notices import Changed, Subscribers
from tidemark.subscriptions.storage import load_roster
from tidemark.wake.queue import WakeMessage

_REFUSALS = (*serve.REFUSALS, BotoCoreError, ClientError, EngineFailed, FunctionNotLoaded)


def main(root: Path = ROOT) -> int:
    """The process's exit code. `root` holds `template.yaml`, `functions/` and `node_modules/`."""

    def run(configuration: ServerConfiguration, settings: Settings, listener: socket.socket) -> int:
        data_dir = configuration.data_dir / "lambda"
        settings = serve.addressed(settings, configuration, listener)
        settings = replace(settings, webhook_keys=settings.webhook_keys or str(data_dir / "webhook-keys"))
        has_edge = parse_boolean(os.environ, "EDGE", default=True)
        prepare_environment(settings, has_edge=has_edge)
        system = System(configuration, settings, root, has_edge=has_edge)
        with (
            LocalServices(data_dir, on_failure=system.fail) as services,
            ManagementServer(Connections()) as server,
        ):
            try:
                return system.run(services, server, listener)
            finally:
                # From here on nothing is left to interrupt.
                for name in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(name, signal.SIG_IGN)

    return serve.run_configured(run, os.environ | {"VIA": ""}, _REFUSALS)


def prepare_environment(settings: Settings, *, has_edge: bool) -> None:
    """Sets the variables that the functions read when they are loaded. Call `check_not_open` before."""
    os.environ |= {"PUBLIC_URL": settings.public_url, "WEBHOOK_KEYS": settings.webhook_keys}
    if not settings.authorization.is_on:
        # The server listens on loopback, which the functions cannot know: nobody else can reach them.
        os.environ["ALLOW_ANONYMOUS"] = "true"
    # Metrics are lines for CloudWatch, and there is none.
    os.environ.setdefault("POWERTOOLS_METRICS_DISABLED", "true")
    if settings.log_level == "INFO":
        # The server logs each request: the function's own JSON line would be a second one.
        os.environ["LOG_LEVEL"] = "WARNING"
    if has_edge and not settings.authorization.has_edge:
        # The functions believe the edge's headers in a request that has the origin secret.
        os.environ["EDGE_SECRET"] = secrets.token_hex(32)


class System:
    """The gateway and the triggers, which start after the engines and stop before them."""

    def __init__(
        self, configuration: ServerConfiguration, settings: Settings, root: Path, *, has_edge: bool
    ) -> None:
        self.configuration = configuration
        self.settings = settings
        self.root = root
        self._has_edge = has_edge
        self._failure: str | None = None
        self._stopping: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, services: LocalServices, server: ManagementServer, listener: socket.socket) -> int:
        """The exit code. Raises what _REFUSALS names."""
        os.environ.update(services.environment)
        services.create_table(self.settings.table_name)
        services.create_bucket(self.settings.bucket_name)
        queue_url = services.create_queue(f"{self.settings.table_name}-subscriptions")
        os.environ["SUBSCRIPTIONS_QUEUE_URL"] = queue_url
        stores = connect(self.settings)
        stores.check_format(PLAIN_EPOCH)
        template = load_template(self.root / "template.yaml")
        if template.socket is not None:
            os.environ.update(server.environment)
        application = self._application(template, server)
        tasks = self._background_tasks(template, services, queue_url)
        try:
            for task in tasks:
                task.start()
            # A kill loses the records of the table that the trigger had not yet.
            self._recover(stores, partial(Queues(sqs_client).send, queue_url))
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._serve(application, listener))
        finally:
            for task in tasks:
                task.stop()
            application.close()
        return 1 if self._failure else 0

    def _recover(self, stores: Stores, send: Callable[[Sequence[str]], None]) -> None:
        """Notify the subscriptions of the last batch of every stream, and of themselves."""
        pages = pages_of_records(stores.table, PLAIN_BUCKET)
        logs = [log_pk(each.key, each.incarnation) for page in pages for each in page]
        appends = [WakeMessage(pk, last.start) for pk in logs if (last := load_last(stores.table, pk))]
        changes = [Changed(entry.subscription_id) for entry in load_roster(stores.table)]
        Subscribers(stores.table, send).notify(appends, changes)

    def fail(self, what: str) -> None:
        """An engine has ended by itself, so nothing can be acknowledged any more. Called from any thread."""
        self._failure = what
        report(f"tidemark: {what}; stopping")
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)

    def _application(self, template: Template, server: ManagementServer) -> Gateway | Edge:
        """Raises FunctionNotLoaded."""
        gateway = Gateway(template, connections=server.connections)
        server.functions |= gateway.environments
        if not self._has_edge or template.streaming is None:
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
        place = f"via lambda; data in {self.configuration.data_dir}/lambda"
        served = behind(application, *own_pages_only(self.settings))
        await serve.serve_logged(
            served, listener, self.configuration, self.settings, place=place, stopping=self._stopping
        )


if __name__ == "__main__":
    code = main(*map(Path, sys.argv[1:]))
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of requests that were cut off may still wait for a reply from an engine that is gone.
    os._exit(code)
