"""The routes below `/v1/stream/__ds/`, as an application of its own with FastAPI's models."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tidemark.delivery.connect import signing_keys
from tidemark.delivery.signing_keys import KeySet, render_jwks
from tidemark.http.backend import Backend, backend_of
from tidemark.http.control_errors import methods_at
from tidemark.http.error_handlers import on_protocol_error, on_unexpected, preflight, response
from tidemark.http.requests import ACCESS, single
from tidemark.http.responses import absolute_url
from tidemark.http.subscriptions.described import described
from tidemark.http.subscriptions.models import AnswerWake, ClaimWake, CreateSubscription, NameStreams
from tidemark.http.subscriptions.rendered import (
    ClaimDescription,
    SigningDescription,
    SubscriptionDescription,
    SubscriptionPage,
    WakeAnswered,
    WakeDescription,
    render_claim,
    render_listed,
    render_subscription,
    render_wake,
)
from tidemark.protocol.authorization import Access, RequiredScope, Right, Target
from tidemark.protocol.caching import DOCUMENT, NO_STORE
from tidemark.protocol.errors import InvalidSubscription, ProtocolError, SubscriptionNotFound
from tidemark.protocol.glob import literal_prefix
from tidemark.protocol.listing import parse_plain_listing
from tidemark.protocol.stream_key import PLAIN_BUCKET
from tidemark.protocol.subscription import (
    SubscriptionConfiguration,
    SubscriptionKind,
    check_subscription_id,
    stream_path,
)
from tidemark.service.subscriptions import configure
from tidemark.service.subscriptions.wakes import WakeRequest, answer_wake, claim, release, wake_now

#: Streams that one response lists.
PAGE: Final = 1_000

router = APIRouter(tags=["subscriptions"])


def subscription_id(id: str) -> str:  # noqa: A002 - the name in the path
    return check_subscription_id(id)


def bearer(authorization: Annotated[str | None, Header(include_in_schema=False)] = None) -> str | None:
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


Id = Annotated[str, Depends(subscription_id)]
Token = Annotated[str | None, Depends(bearer)]
_NO_STORE: Final = {"Cache-Control": NO_STORE}


def create_subscriptions_app(backend: Backend) -> FastAPI:
    app = FastAPI(title="Tidemark's subscriptions", openapi_url=None, redirect_slashes=False)
    app.state.backend = backend
    app.include_router(router)
    app.add_exception_handler(ProtocolError, on_protocol_error)
    app.add_exception_handler(RequestValidationError, on_invalid_body)
    app.add_exception_handler(HTTPException, on_no_route)
    app.add_exception_handler(Exception, on_unexpected)
    return app


@router.get(
    "/subscriptions",
    **described(
        "listSubscriptions",
        "List them (an extension)",
        "write manage",
        {200: "A page of them."},
        SubscriptionPage,
    ),
)
async def list_all(
    request: Request,
    prefix: Annotated[str | None, Query(description="Only ids that begin like this.")] = None,
    after: Annotated[str | None, Query(description="`next_cursor` of the page before.")] = None,
    limit: Annotated[str | None, Query(description="1 to 1000.")] = None,
) -> Response:
    """The subscriptions whose ids begin with `prefix`, a page at a time."""
    backend = backend_of(request)
    for name in request.query_params:
        single(request, name)
    asked = parse_plain_listing(prefix, after, limit)
    records, next_cursor = await backend.run(
        lambda: configure.list_subscriptions(backend.stores, asked.prefix, asked.after, asked.limit)
    )
    listed: SubscriptionPage = {
        "prefix": asked.prefix,
        "subscriptions": [render_listed(record) for record in records],
        "next_cursor": next_cursor,
        "has_more": next_cursor is not None,
    }
    return JSONResponse(listed, headers=_NO_STORE)


@router.put(
    "/subscriptions/{id}",
    **described(
        "createSubscription",
        "Create a subscription (§6.2)",
        "manage",
        {
            201: "Made.",
            200: "There already, the same.",
        },
        SubscriptionDescription,
    ),
)
async def create(request: Request, id: Id, body: CreateSubscription) -> Response:  # noqa: A002
    """§6.2."""
    backend = backend_of(request)
    asked = body.configuration(allow_local=backend.settings.allows_local_webhooks)
    is_webhook = asked.kind is SubscriptionKind.WEBHOOK
    keys = signing_keys(backend.settings, backend.stores) if is_webhook else None
    if is_webhook and keys is None:
        raise InvalidSubscription("Webhooks are not enabled on this server (WEBHOOK_KEYS is not set)")
    check_may_follow(request, asked)
    if keys is not None:
        # Before anything can be delivered: this function alone may make a key.
        await backend.run(partial(keys.active, backend.stores.clock_ms()))
    made = await backend.run(lambda: configure.subscribe(backend.stores, id, asked))
    return await _describe(request, backend, id, 201 if made.is_new else 200)


@router.get(
    "/subscriptions/{id}",
    **described(
        "describeSubscription",
        "Its state and its streams (§6.3)",
        "manage",
        {200: "It is there."},
        SubscriptionDescription,
    ),
)
async def describe(request: Request, id: Id, after: Annotated[str, Query()] = "") -> Response:  # noqa: A002
    """§6.3. `after` continues a list of streams that was cut."""
    return await _describe(request, backend_of(request), id, 200, after)


async def _describe(request: Request, backend: Backend, name: str, status: int, after: str = "") -> Response:
    stores = backend.stores
    record = await backend.run(lambda: configure.require_subscription(stores, name))
    links, next_after = await backend.run(lambda: configure.list_links(stores, record, after, PAGE))
    signing: SigningDescription | None = None
    if record.configuration.webhook_url is not None:
        keys = signing_keys(backend.settings, stores)
        if keys is not None:
            active = await backend.run(partial(keys.active, stores.clock_ms()))
            signing = {"alg": "ed25519", "kid": active.kid, "jwks_url": jwks_url(request, backend)}
    return JSONResponse(render_subscription(record, links, next_after, signing), status, _NO_STORE)


@router.delete(
    "/subscriptions/{id}",
    **described("deleteSubscription", "Delete a subscription (§6.3)", "manage", {204: "It is gone."}),
)
async def delete(request: Request, id: Id) -> Response:  # noqa: A002
    """§6.3. Deleting what is not there succeeds."""
    backend = backend_of(request)
    await backend.run(lambda: configure.unsubscribe(backend.stores, id))
    return _nothing()


@router.post(
    "/subscriptions/{id}/streams",
    **described("nameStreams", "Follow streams by name (§6.4)", "manage", {204: "They are followed."}),
)
async def add_streams(request: Request, id: Id, body: NameStreams) -> Response:  # noqa: A002
    """§6.4."""
    backend = backend_of(request)
    paths = [stream_path(path) for path in body.streams]
    for path in paths:
        _check(request, RequiredScope(Target(PLAIN_BUCKET, path), frozenset({Right.READ})))
    await backend.run(lambda: configure.add_streams(backend.stores, id, paths))
    return _nothing()


@router.delete(
    "/subscriptions/{id}/streams/{path:path}",
    **described("unnameStream", "Undo that for a stream (§6.4)", "manage", {204: "Done."}),
)
async def remove_stream(request: Request, id: Id, path: str) -> Response:  # noqa: A002
    """§6.4."""
    backend, name = backend_of(request), stream_path(path)
    await backend.run(lambda: configure.remove_stream(backend.stores, id, name))
    return _nothing()


@router.post(
    "/subscriptions/{id}/wake",
    **described(
        "wakeSubscription", "Deliver now (an extension)", "manage", {202: "A wake begins."}, WakeDescription
    ),
)
async def begin_wake(request: Request, id: Id) -> Response:  # noqa: A002
    """An extension: what is pending is delivered now, and not at the time of the next attempt."""
    backend = backend_of(request)
    record = await backend.run(lambda: wake_now(backend.stores, id))
    return JSONResponse(render_wake(record.wake), 202, _NO_STORE)


@router.post(
    "/subscriptions/{id}/callback",
    **described("callback", "A webhook's later answer (§7.1)", "", {200: "Accepted."}, WakeAnswered),
)
async def callback(request: Request, id: Id, token: Token, body: AnswerWake) -> Response:  # noqa: A002
    """§7.1."""
    return await _answer(request, id, SubscriptionKind.WEBHOOK, token, body)


@router.post(
    "/subscriptions/{id}/claim",
    **described(
        "claimWake",
        "A worker takes a wake (§7.2)",
        "write manage",
        {200: "What is pending."},
        ClaimDescription,
    ),
)
async def claim_wake(request: Request, id: Id, body: ClaimWake) -> Response:  # noqa: A002
    """§7.2."""
    backend = backend_of(request)
    claimed = await backend.run(lambda: claim(backend.stores, id, body.worker))
    return JSONResponse(render_claim(claimed), headers=_NO_STORE)


@router.post(
    "/subscriptions/{id}/ack",
    **described("ackWake", "A worker acknowledges (§7.2)", "", {200: "Accepted."}, WakeAnswered),
)
async def ack(request: Request, id: Id, token: Token, body: AnswerWake) -> Response:  # noqa: A002
    """§7.2."""
    return await _answer(request, id, SubscriptionKind.PULL_WAKE, token, body)


@router.post(
    "/subscriptions/{id}/release",
    **described("releaseWake", "A worker gives a wake back (§7.2)", "", {204: "It is free."}),
)
async def release_wake(request: Request, id: Id, token: Token, body: AnswerWake) -> Response:  # noqa: A002
    """§7.2."""
    backend = backend_of(request)
    asked = WakeRequest(token, body.generation, body.wake_id)
    await backend.run(lambda: release(backend.stores, id, asked))
    return _nothing()


@router.get(
    "/jwks.json",
    **described("webhookKeys", "The keys that sign webhooks (§6.5)", "", {200: "A key set."}, KeySet),
)
async def jwks(request: Request) -> Response:
    """§6.5."""
    backend = backend_of(request)
    keys = signing_keys(backend.settings, backend.stores)
    published = await backend.run(keys.published) if keys is not None else ()
    # The first key signs at once: no cache may hold a set without it.
    headers = {"Cache-Control": DOCUMENT if published else NO_STORE}
    return JSONResponse(render_jwks(published), headers=headers, media_type="application/jwk-set+json")


async def _answer(
    request: Request, name: str, kind: SubscriptionKind, token: str | None, body: AnswerWake
) -> Response:
    backend = backend_of(request)
    asked = WakeRequest(token, body.generation, body.wake_id, body.as_acks(), body.done)
    follows = await backend.run(lambda: answer_wake(backend.stores, name, kind, asked))
    answered: WakeAnswered = {"ok": True, "next_wake": follows}
    return JSONResponse(answered, headers=_NO_STORE)


def check_may_follow(request: Request, asked: SubscriptionConfiguration) -> None:
    """Whoever creates a subscription learns what happens in its streams, and has its wake stream written to:
    the token must grant both. Raises Forbidden, StreamNotFound."""
    read, write = frozenset({Right.READ}), frozenset({Right.WRITE})
    for path in asked.streams:
        _check(request, RequiredScope(Target(PLAIN_BUCKET, path), read))
    if asked.pattern is not None:
        prefix = literal_prefix(asked.pattern)
        _check(request, RequiredScope(Target(PLAIN_BUCKET, prefix, is_prefix=True), read))
    if asked.wake_stream is not None:
        _check(request, RequiredScope(Target(PLAIN_BUCKET, asked.wake_stream), write))


def _check(request: Request, required: RequiredScope) -> None:
    access: Access | None = request.scope.get(ACCESS)
    if access is not None:
        access.check(required)


def jwks_url(request: Request, backend: Backend) -> str:
    """On the configured public URL; without one, where the client itself has reached this server."""
    base = backend.settings.public_url
    if not base:
        url = urlsplit(absolute_url(request))
        base = f"{url.scheme}://{url.netloc}"
    return f"{base}/v1/stream/__ds/jwks.json"


def _nothing() -> Response:
    """A 204 without a type leaves an HTTP API as application/json."""
    return Response(status_code=204, headers=_NO_STORE | {"Content-Type": "application/json"})


async def on_invalid_body(request: Request, error: Exception) -> Response:
    """Which member of the body is wrong, in one line."""
    assert isinstance(error, RequestValidationError)
    sent = request.headers.get("Content-Type", "")
    if "json" not in sent.lower():
        # The body was not read as JSON then, and the models' own words would not say why.
        wrong = InvalidSubscription(f"Send the body with Content-Type: application/json, not {sent[:80]!r}")
        return await on_protocol_error(request, wrong)
    first: dict[str, Any] = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:]) or "The body"
    return await on_protocol_error(request, InvalidSubscription(f"{place}: {first['msg']}"))


async def on_no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if request.method == "OPTIONS":
        return preflight()
    if error.status_code == 404:
        return await on_protocol_error(request, SubscriptionNotFound())
    if error.status_code == 400:
        return await on_protocol_error(request, InvalidSubscription(f"The body is no JSON: {error.detail}"))
    allow = ", ".join(methods_at(request))
    message = f"{request.method} is not allowed here; allowed: {allow}"
    told = {"code": "METHOD_NOT_ALLOWED", "message": message}
    return response(error.status_code, told, {"Allow": allow})
