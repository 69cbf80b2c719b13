"""The application as a process of the local system serves it."""

from __future__ import annotations

import os

from tidemark.http.app import create_app
from tidemark.local.asgi import Application
from tidemark.local.backend import create_local_backend
from tidemark.local.configuration import LocalConfiguration, LocalEngines, Via
from tidemark.local.edge import Edge, load_application
from tidemark.local.gateway import Gateway
from tidemark.local.template import Template
from tidemark.local.write_signal import WriteSignal
from tidemark.settings import Settings
from tidemark.wake.hub import Hub


def make_application(
    configuration: LocalConfiguration,
    settings: Settings,
    template: Template,
    signal: WriteSignal | None = None,
) -> tuple[Application, Hub | None]:
    """The application, and the hub of its waiting readers where they wait in this very process.

    The gateway gives `signal` for its writes. Raises FunctionNotLoaded.
    """
    if configuration.via is Via.ASGI:
        backend = create_local_backend(settings, LocalEngines.from_environment(os.environ))
        return create_app(backend, with_metrics=True), backend.hub
    if not configuration.edge or template.streaming is None:
        return Gateway(template, signal=signal), None
    streaming = load_application(template.functions[template.streaming])
    return Edge(Gateway(template, signal=signal), streaming, os.environ.get("EDGE_SECRET", "")), None
