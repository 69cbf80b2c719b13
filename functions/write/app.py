"""The `write` function: wiring only."""

from __future__ import annotations

import os

from mangum import Mangum

from tidemark.http.function import create_function_app
from tidemark.settings import Settings

handler = Mangum(create_function_app(Settings.from_environment(os.environ)), lifespan="off")
