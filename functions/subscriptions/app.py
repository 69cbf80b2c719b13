"""The `subscriptions` function: works off the queue of subscriptions that something has happened to."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from tidemark.cold_start import garbage_collection_paused

with garbage_collection_paused():
    from tidemark.observability.report import Reporter
    from tidemark.observability.tracing import traced
    from tidemark.settings import Settings
    from tidemark.subscriptions.connect import connect_attendant
    from tidemark.subscriptions.messages import NotAttention, decode_attention

_log = logging.getLogger("tidemark")
_settings = Settings.from_environment(os.environ)
_attendant = connect_attendant(_settings)
_reporter = Reporter("subscriptions", _settings)
#: A webhook that is slow holds up no other message of the batch. Where Tidemark runs locally, all batches
#: share them: as many as the template's MaximumConcurrency times its BatchSize.
_THREADS: Final = 200
_pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tidemark-deliver")


def _run(event: dict[str, Any], _context: Any) -> dict[str, Any]:
    """Each message by itself; those that failed come again."""
    _attendant.stores.check_format()
    done = list(_pool.map(_attend, event["Records"]))
    _reporter.report()
    failed = [record["messageId"] for record, fine in zip(event["Records"], done, strict=True) if not fine]
    return {"batchItemFailures": [{"itemIdentifier": each} for each in failed]}


def _attend(record: Mapping[str, Any]) -> bool:
    try:
        _attendant.attend(decode_attention(record["body"]))
    except NotAttention:
        _log.error("a message that is none of ours was dropped")
    except Exception:  # noqa: BLE001 - whatever it is, the other messages go on
        _log.exception("a subscription could not be attended to; the message comes again")
        return False
    return True


handler = traced("subscriptions", _settings, _run)
