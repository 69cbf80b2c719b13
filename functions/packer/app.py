"""The `packer` function: packs old batches, and removes the packed ones (`docs/internals/packs.md`)."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from tidemark.cold_start import garbage_collection_paused
from tidemark.log.schema import PLAIN_EPOCH

with garbage_collection_paused():
    from tidemark.janitor.sweep import sweep
    from tidemark.observability.report import Reporter
    from tidemark.service.stores import connect
    from tidemark.settings import Settings

_settings = Settings.from_environment(os.environ)
#: The packer reads no pages, so it keeps no batches in memory.
_stores = connect(_settings, recent_bytes=0)
_reporter = Reporter("packer", _settings)
#: Milliseconds for finishing the current pack before Lambda stops the function.
_SPARE_MS = 20_000


def handler(_event: dict[str, Any], context: Any) -> dict[str, int]:
    _stores.check_format(PLAIN_EPOCH)

    def has_time_left() -> bool:
        return bool(context.get_remaining_time_in_millis() > _SPARE_MS)

    swept = sweep(_stores, has_time_left, removes=False)
    if swept.packed or swept.cut_short or swept.lag_ms:
        # Only then: a metric is billed for each hour in which it has a value.
        _reporter.report({"PackingLag": swept.lag_ms})
    return asdict(swept)
