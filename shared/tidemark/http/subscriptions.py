"""The handlers of subscriptions, below `/v1/stream/__ds/` (§6, §7)."""

from __future__ import annotations

from functools import partial
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidemark.delivery.connect import signing_keys
from tidemark.delivery.signing_keys import render_jwks
from tidemark.http.backend import Backend, backend_of
from tidemark.http.requests import ACCESS, read_body, singles
from tidemark.http.responses import origin
from tidemark.http.subscription_bodies import (
    AnswerWake,
    ClaimWake,
    CreateSubscription,
    NameStreams,
    SigningDescription,
    SubscriptionPage,
    WakeAnswered,
    render_claim,
    render_listed,
    render_subscription,
    render_wake,
)
from tidemark.protocol.authorization import Access, RequiredScope, Right, Target
from tidemark.protocol.bucket import parse_plain_listing
from tidemark.protocol.caching import DOCUMENT, NO_STORE
from tidemark.protocol.errors import InvalidSubscription
from tidemark.protocol.stream_key import PLAIN_BUCKET
from tidemark.protocol.subscription import (
    SubscriptionConfiguration,
    SubscriptionKind,
    check_subscription_id,
    literal_prefix,
    stream_path,
)
from tidemark.service.subscriptions import configure
from tidemark.service.subscriptions.wakes import WakeRequest, answer_wake, claim, release, wake_now

#: Streams that one response lists.
PAGE: Final = 1_000
_NO_STORE: Final = {"Cache-Control": NO_STORE}
_Body = TypeVar("_Body", bound=BaseModel)


def subscription_id(request: Request) -> str:
    return check_subscription_id(request.path_params["id"])


def bearer(request: Request) -> str | None:
    scheme, _, token = (request.headers.get("Authorization") or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


async def parse_body(request: Request, model: type[_Body]) -> _Body:
    """Raises InvalidSubscription, which says in one line which member is wrong."""
    body = await read_body(request)
    sent = request.headers.get("Content-Type", "")
    essence = sent.partition(";")[0].strip().lower()
    if essence != "application/json" and not essence.endswith("+json"):
        raise InvalidSubscription(f"Send the body with Content-Type: application/json, not {sent[:80]!r}")
    try:
        return model.model_validate_json(body)
    except ValidationError as wrong:
        first = wrong.errors()[0]
        place = ".".join(map(str, first["loc"])) or "The body"
        raise InvalidSubscription(f"{place}: {first['msg']}") from None


async def list_subscriptions(request: Request) -> Response:
    """List the subscriptions whose ids begin with `prefix` (an extension)."""
    backend, query = backend_of(request), singles(request)
    asked = parse_plain_listing(query.get("prefix"), query.get("after"), query.get("limit"))
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


async def create_subscription(request: Request) -> Response:
    """Create a subscription (§6.2)."""
    backend, name = backend_of(request), subscription_id(request)
    body = await parse_body(request, CreateSubscription)
    asked = body.configuration(allow_local=backend.settings.allows_local_webhooks)
    is_webhook = asked.kind is SubscriptionKind.WEBHOOK
    keys = signing_keys(backend.settings, backend.stores) if is_webhook else None
    if is_webhook and keys is None:
        raise InvalidSubscription("Webhooks are not enabled on this server (WEBHOOK_KEYS is not set)")
    check_may_follow(request, asked)
    if keys is not None:
        # Before anything can be delivered: this function alone may make a key.
        await backend.run(partial(keys.active, backend.stores.clock_ms()))
    made = await backend.run(lambda: configure.subscribe(backend.stores, name, asked))
    return await _describe(request, backend, name, 201 if made.is_new else 200)


async def describe_subscription(request: Request) -> Response:
    """Its state and its streams (§6.3).

    `after` continues a list of streams that was cut."""
    after = singles(request).get("after", "")
    return await _describe(request, backend_of(request), subscription_id(request), 200, after)


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


async def delete_subscription(request: Request) -> Response:
    """Delete a subscription (§6.3). Deleting what is not there succeeds."""
    backend, name = backend_of(request), subscription_id(request)
    await backend.run(lambda: configure.unsubscribe(backend.stores, name))
    return _nothing()


async def name_streams(request: Request) -> Response:
    """Follow streams by name (§6.4)."""
    backend, name = backend_of(request), subscription_id(request)
    body = await parse_body(request, NameStreams)
    paths = [stream_path(path) for path in body.streams]
    for path in paths:
        _check(request, RequiredScope(Target(PLAIN_BUCKET, path), frozenset({Right.READ})))
    await backend.run(lambda: configure.add_streams(backend.stores, name, paths))
    return _nothing()


async def unname_stream(request: Request) -> Response:
    """Follow a stream by its name no more (§6.4)."""
    backend, name = backend_of(request), subscription_id(request)
    path = stream_path(request.path_params["path"])
    await backend.run(lambda: configure.remove_stream(backend.stores, name, path))
    return _nothing()


async def wake_subscription(request: Request) -> Response:
    """Deliver now (an extension).

    The pending wake is delivered now, and not at the time of the next attempt."""
    backend, name = backend_of(request), subscription_id(request)
    record = await backend.run(lambda: wake_now(backend.stores, name))
    return JSONResponse(render_wake(record.wake), 202, _NO_STORE)


async def callback(request: Request) -> Response:
    """A webhook's later answer (§7.1)."""
    return await _answer(request, SubscriptionKind.WEBHOOK)


async def claim_wake(request: Request) -> Response:
    """A worker takes a wake (§7.2)."""
    backend, name = backend_of(request), subscription_id(request)
    body = await parse_body(request, ClaimWake)
    claimed = await backend.run(lambda: claim(backend.stores, name, body.worker))
    return JSONResponse(render_claim(claimed), headers=_NO_STORE)


async def ack_wake(request: Request) -> Response:
    """A worker acknowledges (§7.2)."""
    return await _answer(request, SubscriptionKind.PULL_WAKE)


async def release_wake(request: Request) -> Response:
    """A worker gives a wake back (§7.2)."""
    backend, name = backend_of(request), subscription_id(request)
    body = await parse_body(request, AnswerWake)
    asked = WakeRequest(bearer(request), body.generation, body.wake_id)
    await backend.run(lambda: release(backend.stores, name, asked))
    return _nothing()


async def webhook_keys(request: Request) -> Response:
    """The keys that sign webhooks (§6.5)."""
    backend = backend_of(request)
    keys = signing_keys(backend.settings, backend.stores)
    published = await backend.run(keys.published) if keys is not None else ()
    # The first key signs at once: no cache may hold a set without it.
    headers = {"Cache-Control": DOCUMENT if published else NO_STORE}
    return JSONResponse(render_jwks(published), headers=headers, media_type="application/jwk-set+json")


async def _answer(request: Request, kind: SubscriptionKind) -> Response:
    backend, name = backend_of(request), subscription_id(request)
    body = await parse_body(request, AnswerWake)
    asked = WakeRequest(bearer(request), body.generation, body.wake_id, body.as_acks(), body.done)
    follows = await backend.run(lambda: answer_wake(backend.stores, name, kind, asked))
    answered: WakeAnswered = {"ok": True, "next_wake": follows}
    return JSONResponse(answered, headers=_NO_STORE)


def check_may_follow(request: Request, asked: SubscriptionConfiguration) -> None:
    """A subscription tells its creator about appends to its streams, and writes to its wake stream: the token
    must grant both. Raises Forbidden, StreamNotFound."""
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
    return f"{backend.settings.public_url or origin(request)}/v1/stream/__ds/jwks.json"


def _nothing() -> Response:
    """A 204 without a type leaves an HTTP API as application/json."""
    return Response(status_code=204, headers=_NO_STORE | {"Content-Type": "application/json"})
