"""The `notifier` function: for each write in the table's stream, wakes waiting processes and sockets,
notifies subscriptions, and keeps the registry of streams if there is one."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from tidemark.cold_start import garbage_collection_paused

with garbage_collection_paused():
    from tidemark.aws.http import Account
    from tidemark.aws.sqs import Queues, sqs_client
    from tidemark.log.schema import ItemWrite, decode_write
    from tidemark.observability.report import Reporter
    from tidemark.service.stores import connect
    from tidemark.service.stream_registry import StreamRegistry, written_by
    from tidemark.settings import Settings
    from tidemark.subscriptions.notices import Subscribers, changed_from_write
    from tidemark.wake.notifier import Notifier, connect_sockets, message_from_write
    from tidemark.wake.queue import WakeMessage

_settings = Settings.from_environment(os.environ)
_stores = connect(_settings)
_sockets = connect_sockets(Account(), _settings.socket_endpoint) if _settings.socket_endpoint else None
_queues = Queues(sqs_client, _settings.queue_prefix)
_notifier = Notifier(_stores.table, _queues, _stores.clock_ms, _sockets)
#: Reports only the metrics of sockets, because a metric is billed for each hour in which it has a value.
_reporter = Reporter("notifier", _settings, _sockets.meter) if _sockets else None
_subscribers = (
    Subscribers(_stores.table, partial(_queues.send, _settings.subscriptions_queue_url))
    if _settings.subscriptions_queue_url
    else None
)
_registry = StreamRegistry(_stores)


def handler(event: dict[str, Any], _context: Any) -> dict[str, Any]:
    """Handle all records together, then return the failed ones, which Lambda delivers again: records of a log
    whose readers could not be woken, and records that cannot be decoded. If the subscriptions or the registry
    could not be notified, all records have failed. If all records have failed, raises an error, so that
    Lambda counts it and an alarm goes off."""
    _stores.check_format()
    writes: list[ItemWrite] = []
    messages: list[tuple[str, WakeMessage | None]] = []
    failed: dict[str, Exception] = {}
    for record in event["Records"]:
        number = record["dynamodb"]["SequenceNumber"]
        try:
            write = decode_write(record)
            messages.append((number, message_from_write(write)))
            writes.append(write)
        except (KeyError, ValueError, TypeError) as unreadable:  # Tidemark did not write this item.
            failed[number] = unreadable
    appends = [message for _, message in messages if message is not None]
    failures = _notifier.notify(appends)
    if _reporter is not None:
        _reporter.report()
    unregistered: Exception | None = None
    try:
        if _subscribers is not None:
            _subscribers.notify(appends, filter(None, map(changed_from_write, writes)))
        _registry.append_changes(written_by(writes))
    except Exception as failure:  # noqa: BLE001 - reported for each record
        unregistered = failure
    for number, message in messages:
        if error := (failures.get(message.log_pk) if message else None) or unregistered:
            failed[number] = error
    if failed and len(failed) == len(event["Records"]):
        raise next(iter(failed.values()))
    return {"batchItemFailures": [{"itemIdentifier": number} for number in failed]}
