"""How Lambda calls a function, and what it tells of each invocation."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import Scope

Handler = Callable[[dict[str, Any], Any], dict[str, Any]]
"""A handler of events: the event and Lambda's context object in, the answer out."""


def lambda_context(scope: Scope) -> dict[str, Any]:
    """What the Web Adapter tells of the invocation. Empty where the request is not one, such as
    the adapter's own question whether the application is up."""
    told = dict(scope.get("headers") or ()).get(b"x-amzn-lambda-context", b"{}")
    try:
        context = json.loads(told)
    except ValueError:
        return {}
    return context if isinstance(context, dict) else {}
