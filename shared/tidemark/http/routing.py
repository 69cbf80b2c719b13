"""The routes of the FastAPI application.

`DirectRoute` is for the protocol's own operations, whose headers and bodies have rules of their own
(`requests.py`); `ControlRoute` for those whose queries, bodies and answers are models. `Dispatch` looks the
route of a request up, and does not try one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import orjson
from fastapi import APIRouter
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.params import Security
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidemark.http.paths import CalledDirectly, Operation, Operations
from tidemark.http.requests import read_body, singles
from tidemark.http.scopes import Requires
from tidemark.protocol.authorization import Right
from tidemark.protocol.caching import NO_STORE
from tidemark.protocol.errors import InvalidSubscription


def camel(name: str) -> str:
    return re.sub("_(.)", lambda found: found[1].upper(), name)


class _Route(Operation, APIRoute):
    """What its `Security` requires is for `Authorization`, which asks before anything is looked up."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        succeeds = [status for status in options.get("responses") or () if status < 400]
        if options.get("status_code") is None and succeeds:
            options["status_code"] = min(succeeds)
        options["summary"] = (endpoint.__doc__ or "").partition("\n")[0].rstrip(".")
        options["operation_id"] = options.get("operation_id") or camel(endpoint.__name__)
        super().__init__(path, endpoint, **options)
        found = next((each for each in self.dependencies if isinstance(each, Security)), None)
        self.rights = frozenset(map(Right, found.scopes or ())) if found else frozenset()
        self.demand = found.dependency.demand if found and isinstance(found.dependency, Requires) else None


class DirectRoute(CalledDirectly, _Route):
    """FastAPI knows it for the document alone: solving the parameters that it does not have would be a sixth
    of the CPU of an append."""


class ControlRoute(_Route):
    """Queries, bodies and answers are models. A parameter is given once. The answer describes this moment, so
    no cache keeps it unless the handler says so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        respond, takes_body = super().get_route_handler(), self.body_field is not None

        async def controlled(request: Request) -> Response:
            singles(request)
            bounded = _Bounded(request.scope, request.receive)
            if takes_body:
                await bounded.body()
                check_is_json(request)
            response = await respond(bounded)
            response.headers.setdefault("Cache-Control", NO_STORE)
            return response

        return controlled

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """`Operations` has looked at the method. Solving the parameters takes the exit stack."""
        await AsyncExitStackMiddleware(self.app)(scope, receive, send)


class _Bounded(Request):
    """Its body has the same limits as an append's."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            self._body = await read_body(self)
        return self._body

    async def json(self) -> Any:
        """Strict: UTF-8, and nested no deeper than can be read."""
        return orjson.loads(await self.body())


def check_is_json(request: Request) -> None:
    sent = request.headers.get("Content-Type", "")
    essence = sent.partition(";")[0].strip().lower()
    if essence != "application/json" and not essence.endswith("+json"):
        raise InvalidSubscription(f"Send the body with Content-Type: application/json, not {sent[:80]!r}")


class Dispatch(APIRouter):
    """The application's router."""

    def __init__(self, routes: Iterable[Operation], **options: Any) -> None:
        super().__init__(routes=list(routes), **options)
        self.operations: Final = Operations(routes)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().app(scope, receive, send)
            return
        await self.operations(scope, receive, send)
