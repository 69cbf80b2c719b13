"""The `janitor` function: ends expired streams, frees their space, removes orphans."""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import partial
from typing import Any

from tidemark.cold_start import garbage_collection_paused

with garbage_collection_paused():
    from tidemark.aws.sqs import Queues, sqs_client
    from tidemark.janitor.sweep import sweep
    from tidemark.observability.report import Reporter
    from tidemark.service.stores import connect
    from tidemark.settings import Settings
    from tidemark.subscriptions.pending import remind
    from tidemark.wake.notifier import sweep_queues

_settings = Settings.from_environment(os.environ)
_stores = connect(_settings)
_queues = Queues(sqs_client, _settings.queue_prefix)
_send_notices = partial(_queues.send, _settings.subscriptions_queue_url)
_reporter = Reporter("janitor", _settings)
#: Milliseconds for finishing the current entry before Lambda stops the function.
_SPARE_MS = 10_000


def handler(_event: dict[str, Any], context: Any) -> dict[str, int]:
    _stores.check_format()

    def has_time_left() -> bool:
        return bool(context.get_remaining_time_in_millis() > _SPARE_MS)

    swept = asdict(sweep(_stores, has_time_left, packs=False))
    swept |= asdict(sweep_queues(_stores.table, _queues, _stores.clock_ms(), has_time_left))
    if _settings.subscriptions_queue_url:
        swept["reminded"] = remind(_stores, _send_notices, has_time_left)
    if swept["cut_short"]:
        # Only then: a metric is billed for each hour in which it has a value.
        _reporter.report()
    return swept
