"""The `read` function: wiring only."""

from __future__ import annotations

import os

from tidemark.deployed.adapter import adapted
from tidemark.deployed.report import reporting
from tidemark.http.function import create_function_app
from tidemark.settings import Settings

_settings = Settings.from_environment(os.environ)
handler = reporting("read", _settings, adapted(create_function_app(_settings)))
