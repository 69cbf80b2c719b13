"""Which reader a query gets. Each is imported only where it is used: every query starts a process."""

from __future__ import annotations

from tidemark.spark.options.connection import Origin, Transport
from tidemark.spark.readers.port import Reader


def connect(origin: Origin) -> Reader:
    if origin.transport is Transport.HTTP:
        from tidemark.spark.readers.http import PagesReader

        return PagesReader(origin)
    from tidemark.spark.readers.dynamodb import ChainReader

    return ChainReader(origin)
