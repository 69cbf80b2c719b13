"""The `subscriptions` function: handles the queue of notices about subscriptions."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from tidemark.cold_start import garbage_collection_paused

with garbage_collection_paused():
    from tidemark.aws.sqs import Queues, sqs_client
    from tidemark.observability.metrics import PROCESS
    from tidemark.observability.report import Reporter
    from tidemark.service.stores import connect
    from tidemark.settings import Settings
    from tidemark.subscriptions.deliveries import Deliverer
    from tidemark.subscriptions.notices import NotANotice, decode_notice
    from tidemark.subscriptions.signing_keys import connect_signing_keys

_log = logging.getLogger("tidemark")
_settings = Settings.from_environment(os.environ)
_stores = connect(_settings)
_send_notices = partial(Queues(sqs_client).send, _settings.subscriptions_queue_url)
_deliverer = Deliverer(_stores, _send_notices, connect_signing_keys(_settings, _stores), _settings)
_reporter = Reporter("subscriptions", _settings)
if _settings.exports_spans:
    PROCESS.export_spans()
#: Threads, so that a slow webhook does not delay the other messages of its batch. All batches share them if
#: Tidemark runs locally: the template's MaximumConcurrency times its BatchSize.
_THREADS: Final = 200
_pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tidemark-deliver")


def handler(event: dict[str, Any], _context: Any) -> dict[str, Any]:
    """Handle every message on its own. The failed ones come again."""
    _stores.check_format()
    done = list(_pool.map(_handle, event["Records"]))
    _reporter.report()
    failed = [record["messageId"] for record, fine in zip(event["Records"], done, strict=True) if not fine]
    return {"batchItemFailures": [{"itemIdentifier": each} for each in failed]}


def _handle(record: Mapping[str, Any]) -> bool:
    try:
        _deliverer.handle(decode_notice(record["body"]))
    except NotANotice:
        _log.error("dropped a message that is not a notice")
    except Exception:  # noqa: BLE001 - whatever it is, the other messages go on
        _log.exception("a subscription could not be handled; the notice is retried")
        return False
    return True
