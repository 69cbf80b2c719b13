"""The `notifier` function: rings those who wait for what the table's stream says was written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
from aws_lambda_powertools.utilities.data_classes.dynamo_db_stream_event import DynamoDBRecord

from tidemark.aws.sqs import Queues, sqs_client
from tidemark.observability.tracing import traced
from tidemark.service.stores import connect
from tidemark.settings import Settings
from tidemark.wake.notifier import Notifier, ring_of
from tidemark.wake.ring import Ring

_settings = Settings.from_environment(os.environ)
_stores = connect(_settings)
_notifier = Notifier(_stores.table, Queues(sqs_client, _settings.queue_prefix), _stores.clock_ms)
_processor = BatchProcessor(event_type=EventType.DynamoDBStreams)


def _run(event: dict[str, Any], context: Any) -> Any:
    """All records at once, then record by record what became of it: those of a log whose
    readers could not be rung, and those that cannot be read, are delivered again."""
    failures = _notifier.notify(_rings(event["Records"]))

    def check(record: DynamoDBRecord) -> None:
        ring = ring_of(record.raw_event)
        if ring is not None and ring.log_pk in failures:
            raise failures[ring.log_pk]

    return process_partial_response(event=event, record_handler=check, processor=_processor, context=context)


def _rings(records: Sequence[Mapping[str, Any]]) -> Iterator[Ring]:
    for record in records:
        with suppress(KeyError, ValueError, TypeError):
            ring = ring_of(record)
            if ring is not None:
                yield ring


handler = traced("notifier", _settings, _run)
