"""The OpenAPI document, without a server."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any
from unittest.mock import Mock

from tidemark.http.api import Api


@cache
def application() -> Api:
    """Serves nothing, so it needs no backend."""
    return Api(Mock())


def openapi_document() -> dict[str, Any]:
    return copy.deepcopy(application().openapi())
