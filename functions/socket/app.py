"""The `socket` function: wiring only."""

from __future__ import annotations

import os

from tidemark.cold_start import garbage_collection_paused

with garbage_collection_paused():
    from tidemark.http.socket import create_socket_handler
    from tidemark.observability.report import reporting
    from tidemark.settings import Settings

_settings = Settings.from_environment(os.environ)
handler = reporting("socket", _settings, create_socket_handler(_settings))
