"""The `janitor` function: ends what has expired, gives its space back."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from tidemark.service.janitor import sweep
from tidemark.service.stores import connect
from tidemark.settings import Settings

_stores = connect(Settings.from_environment(os.environ))
#: Time to finish the entry in hand before the function is stopped.
_SPARE_MS = 10_000


def handler(_event: dict[str, Any], context: Any) -> dict[str, int]:
    return asdict(sweep(_stores, lambda: context.get_remaining_time_in_millis() > _SPARE_MS))
