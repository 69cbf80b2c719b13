"""Switches traces on: the module that makes them (`traces.py`) is imported only with TRACING=Active."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.observability.invocation import Handler
from tidemark.settings import Settings

if TYPE_CHECKING:
    from starlette.types import ASGIApp


def traced(service: str, settings: Settings, handler: Handler) -> Handler:
    if not settings.tracing:
        return handler
    from tidemark.observability.traces import Traces

    return Traces(service).of_handler(handler)


def traced_app(service: str, settings: Settings, app: ASGIApp) -> ASGIApp:
    """The same for an application behind an adapter."""
    if not settings.tracing:
        return app
    from tidemark.observability.traces import Traces

    return Traces(service).of_app(app)
