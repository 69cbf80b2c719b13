"""`python -m tidemark.local.worker <descriptor> <log level> <root>`: one more serving process (`workers.py`).

Everything else is in the environment, as the first process found or made it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path

from tidemark.cold_start import spare_what_is_loaded
from tidemark.local.application import make_application
from tidemark.local.asgi import Application
from tidemark.local.configuration import LocalConfiguration
from tidemark.local.edge import Edge
from tidemark.local.gateway import Gateway
from tidemark.local.request_log import RequestLog, wants_colour
from tidemark.local.server import loop_factory, serve
from tidemark.local.template import load_template
from tidemark.local.workers import READY
from tidemark.settings import Settings


def main(descriptor: int, log_level: str, root: Path) -> None:
    # Until the server handles SIGTERM itself it ends the process; SIGINT is for the first process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    configuration = LocalConfiguration.from_environment(os.environ)
    settings = replace(Settings.from_environment(os.environ), log_level=log_level)
    application, _ = make_application(configuration, settings, load_template(root / "template.yaml"))
    try:
        with (
            socket.socket(fileno=descriptor) as listener,
            asyncio.Runner(loop_factory=loop_factory()) as runner,
        ):
            runner.run(_serve(application, listener, configuration, settings))
    finally:
        if isinstance(application, Gateway | Edge):
            application.close()


async def _serve(
    application: Application, listener: socket.socket, configuration: LocalConfiguration, settings: Settings
) -> None:
    level = logging.getLevelNamesMapping()[settings.log_level]
    log = RequestLog(sys.stderr, level, colour=wants_colour(sys.stderr, os.environ))
    spare_what_is_loaded()

    def say_ready() -> None:
        print(READY, flush=True)

    limits = configuration.limits
    await serve(application, listener, say_ready, asyncio.Event(), limits, log=log, shares_port=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
    # Threads of requests that were cut off may still wait for a reply.
    os._exit(0)
