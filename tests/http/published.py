"""The operations and the OpenAPI document, without a server."""

import copy
from functools import cache
from typing import Any

from tidemark.http.api import control_operations, document
from tidemark.http.paths import Operation, Operations
from tidemark.http.streams import stream_operations


def operations() -> list[Operation]:
    return [*stream_operations(), *control_operations()]


@cache
def application() -> Operations:
    """It serves nothing, so it needs no backend."""
    return Operations(operations())


def openapi_document() -> dict[str, Any]:
    return copy.deepcopy(document())
