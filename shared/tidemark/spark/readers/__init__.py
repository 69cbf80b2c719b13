"""Chooses a query's reader. Imports it on use only, because every query starts a process."""

from __future__ import annotations

from tidemark.spark.options import ConnectionOptions, Transport
from tidemark.spark.readers.port import Reader


def connect(connection: ConnectionOptions) -> Reader:
    if connection.transport is Transport.HTTP:
        from tidemark.spark.readers.http import HttpReader

        return HttpReader(connection)
    from tidemark.spark.readers.dynamodb import DynamoDBReader

    return DynamoDBReader(connection)
