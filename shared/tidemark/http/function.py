"""The application as a Lambda function serves it: one request at a time."""

from __future__ import annotations

from functools import partial

from tidemark.http.app import create_app
from tidemark.http.backend import one_at_a_time
from tidemark.http.headers import ResponseHeaders
from tidemark.service.stores import connect
from tidemark.settings import Settings


def create_function_app(settings: Settings, *, writes: bool = False) -> ResponseHeaders:
    """Raises InvalidSetting for a function that would serve everybody without a token."""
    settings.authorization.check_not_open()
    stores = connect(settings)
    check = partial(stores.check_format, raises=writes)
    return create_app(one_at_a_time(stores, settings), check_format=check)
