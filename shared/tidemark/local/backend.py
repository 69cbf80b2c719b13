"""What a server process on this machine answers requests with: the stores, called on the event loop."""

from __future__ import annotations

from functools import partial

from tidemark.http.app import create_app
from tidemark.http.backend import Backend, many_at_once
from tidemark.http.headers import ResponseHeaders
from tidemark.local.configuration import AWS_ALONE, LocalEngines
from tidemark.local.on_loop.stores import OnLoop
from tidemark.service.stores import MEGABYTE, connect
from tidemark.settings import Settings


def create_local_backend(settings: Settings, engines: LocalEngines = AWS_ALONE) -> Backend:
    stores = connect(settings, recent_bytes=64 * MEGABYTE)
    return many_at_once(stores, settings, on_loop=partial(OnLoop, stores, settings, engines=engines))


def create_local_app(settings: Settings) -> ResponseHeaders:
    return create_app(create_local_backend(settings), with_metrics=True)
