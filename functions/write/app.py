"""The `write` function: wiring only."""

from __future__ import annotations

import os

from mangum import Mangum

from tidemark.deployed.report import reporting
from tidemark.http.function import create_function_app
from tidemark.settings import Settings

#: No content type has a line end in it, so every body travels as base64: a third more, whatever it
#: holds. As text, a page of quotes or of Cyrillic would be escaped beyond Lambda's 6 MB.
_NONE_AS_TEXT = ["\n"]

_settings = Settings.from_environment(os.environ)
_app = create_function_app(_settings)
handler = reporting("write", _settings, Mangum(_app, lifespan="off", text_mime_types=_NONE_AS_TEXT))
