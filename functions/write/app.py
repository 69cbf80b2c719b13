"""The `write` function: wiring only."""

from __future__ import annotations

import os

from tidemark.cold_start import garbage_collection_paused

with garbage_collection_paused():
    from tidemark.http.lambda_adapter import adapted, create_function_app
    from tidemark.observability.report import reporting
    from tidemark.settings import Settings

_settings = Settings.from_environment(os.environ)
handler = reporting("write", _settings, adapted(create_function_app(_settings, writes=True)))
