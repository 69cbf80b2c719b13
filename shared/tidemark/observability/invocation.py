"""How Lambda calls a function, and the Web Adapter's headers about an invocation."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import Scope

Handler = Callable[[dict[str, Any], Any], dict[str, Any]]
"""A handler of events: it takes the event and Lambda's context object, and returns the response."""


def lambda_context(scope: Scope) -> dict[str, Any]:
    """Lambda's context, as the Web Adapter sends it in a header. Empty where the request is no
    invocation, such as the adapter's own health check."""
    header = dict(scope.get("headers") or ()).get(b"x-amzn-lambda-context", b"{}")
    try:
        context = json.loads(header)
    except ValueError:
        return {}
    return context if isinstance(context, dict) else {}
