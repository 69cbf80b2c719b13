"""The handlers of subscriptions, below `/v1/stream/__ds/` (§6, §7)."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Security
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidemark.http.backend import Backend, backend_of
from tidemark.http.catalog import PageQuery
from tidemark.http.requests import ACCESS
from tidemark.http.responses import origin
from tidemark.http.routing import ControlRoute
from tidemark.http.scopes import ALL_SUBSCRIPTIONS, SUBSCRIPTION
from tidemark.http.subscription_bodies import (
    AnswerWake,
    ClaimDescription,
    ClaimWake,
    CreateSubscription,
    NameStreams,
    SigningDescription,
    SubscriptionDescription,
    SubscriptionPage,
    SubscriptionRefusal,
    WakeAnswered,
    WakeDescription,
    render_claim,
    render_listed,
    render_subscription,
    render_wake,
)
from tidemark.protocol.authorization import Access, RequiredScope, Right, Target
from tidemark.protocol.caching import DOCUMENT, NO_STORE
from tidemark.protocol.errors import InvalidSubscription
from tidemark.protocol.stream_key import PLAIN_BUCKET
from tidemark.subscriptions import lifecycle
from tidemark.subscriptions.configuration import (
    SubscriptionConfiguration,
    SubscriptionKind,
    check_subscription_id,
    literal_prefix,
    stream_path,
)
from tidemark.subscriptions.connect import signing_keys
from tidemark.subscriptions.signing_keys import KeySet, render_jwks
from tidemark.subscriptions.workers import WakeRequest, answer_wake, claim, release, wake_now

#: Streams that one response lists.
PAGE: Final = 1_000
router: Final = APIRouter(
    prefix="/v1/stream/__ds",
    route_class=ControlRoute,
    tags=["subscriptions"],
    responses={400: {"description": "The request breaks a rule of form.", "model": SubscriptionRefusal}},
)
_ONE: Final = "/subscriptions/{id:id}"
_SEE: Final = [Security(SUBSCRIPTION, scopes=["write", "manage"])]
_MANAGE: Final = [Security(SUBSCRIPTION, scopes=["manage"])]
#: Callbacks, acks and releases carry the token of their wake, which the service checks.
_WAKE_TOKEN: Final = [Security(SUBSCRIPTION)]


def subscription_id(request: Request) -> str:
    return check_subscription_id(request.path_params["id"])


SubscriptionId = Annotated[str, Depends(subscription_id)]


def bearer(request: Request) -> str | None:
    scheme, _, token = (request.headers.get("Authorization") or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


@router.get("/subscriptions", dependencies=[Security(ALL_SUBSCRIPTIONS, scopes=["write", "manage"])])
async def list_subscriptions(request: Request, page: Annotated[PageQuery, Query()]) -> SubscriptionPage:
    """List the subscriptions whose ids begin with `prefix` (an extension)."""
    backend, asked = backend_of(request), page.listing()
    records, next_cursor = await backend.run(
        lambda: lifecycle.list_subscriptions(backend.stores, asked.prefix, asked.after, asked.limit)
    )
    return {
        "prefix": asked.prefix,
        "subscriptions": [render_listed(record) for record in records],
        "next_cursor": next_cursor,
        "has_more": next_cursor is not None,
    }


@router.put(
    _ONE,
    dependencies=_MANAGE,
    response_model=SubscriptionDescription,
    status_code=201,
    responses={200: {"description": "There already, the same.", "model": SubscriptionDescription}},
)
async def create_subscription(request: Request, name: SubscriptionId, body: CreateSubscription) -> Response:
    """Create a subscription (§6.2)."""
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
    made = await backend.run(lambda: lifecycle.subscribe(backend.stores, name, asked))
    return JSONResponse(await _describe(request, backend, name), 201 if made.is_new else 200)


@router.get(_ONE, dependencies=_SEE, response_model_exclude_unset=True)
async def describe_subscription(
    request: Request,
    name: SubscriptionId,
    after: Annotated[str, Query(description="The `streams_after` of the page before.")] = "",
) -> SubscriptionDescription:
    """Its state and its streams (§6.3).

    `after` continues a list of streams that was cut."""
    return await _describe(request, backend_of(request), name, after)


async def _describe(
    request: Request, backend: Backend, name: str, after: str = ""
) -> SubscriptionDescription:
    stores = backend.stores
    record = await backend.run(lambda: lifecycle.require_subscription(stores, name))
    links, next_after = await backend.run(lambda: lifecycle.list_links(stores, record, after, PAGE))
    signing: SigningDescription | None = None
    if record.configuration.webhook_url is not None:
        keys = signing_keys(backend.settings, stores)
        if keys is not None:
            active = await backend.run(partial(keys.active, stores.clock_ms()))
            signing = {"alg": "ed25519", "kid": active.kid, "jwks_url": jwks_url(request, backend)}
    return render_subscription(record, links, next_after, signing)


@router.delete(_ONE, dependencies=_MANAGE, status_code=204)
async def delete_subscription(request: Request, name: SubscriptionId) -> Response:
    """Delete a subscription (§6.3). Deleting what is not there succeeds."""
    backend = backend_of(request)
    await backend.run(lambda: lifecycle.unsubscribe(backend.stores, name))
    return _nothing()


@router.post(f"{_ONE}/streams", dependencies=_MANAGE, status_code=204)
async def name_streams(request: Request, name: SubscriptionId, body: NameStreams) -> Response:
    """Follow streams by name (§6.4)."""
    backend = backend_of(request)
    paths = [stream_path(path) for path in body.streams]
    for path in paths:
        _check(request, RequiredScope(Target(PLAIN_BUCKET, path), frozenset({Right.READ})))
    await backend.run(lambda: lifecycle.add_streams(backend.stores, name, paths))
    return _nothing()


@router.delete(f"{_ONE}/streams/{{path:segments}}", dependencies=_MANAGE, status_code=204)
async def unname_stream(request: Request, name: SubscriptionId) -> Response:
    """Follow a stream by its name no more (§6.4)."""
    backend, path = backend_of(request), stream_path(request.path_params["path"])
    await backend.run(lambda: lifecycle.remove_stream(backend.stores, name, path))
    return _nothing()


@router.post(f"{_ONE}/wake", dependencies=_MANAGE, status_code=202)
async def wake_subscription(request: Request, name: SubscriptionId) -> WakeDescription:
    """Deliver now (an extension).

    The pending wake is delivered now, and not at the time of the next attempt."""
    backend = backend_of(request)
    return render_wake((await backend.run(lambda: wake_now(backend.stores, name))).wake)


@router.post(f"{_ONE}/callback", dependencies=_WAKE_TOKEN)
async def callback(request: Request, name: SubscriptionId, body: AnswerWake) -> WakeAnswered:
    """A webhook's later answer (§7.1)."""
    return await _answer(request, name, SubscriptionKind.WEBHOOK, body)


@router.post(f"{_ONE}/claim", dependencies=_SEE)
async def claim_wake(request: Request, name: SubscriptionId, body: ClaimWake) -> ClaimDescription:
    """A worker takes a wake (§7.2)."""
    backend = backend_of(request)
    return render_claim(await backend.run(lambda: claim(backend.stores, name, body.worker)))


@router.post(f"{_ONE}/ack", dependencies=_WAKE_TOKEN)
async def ack_wake(request: Request, name: SubscriptionId, body: AnswerWake) -> WakeAnswered:
    """A worker acknowledges (§7.2)."""
    return await _answer(request, name, SubscriptionKind.PULL_WAKE, body)


@router.post(f"{_ONE}/release", dependencies=_WAKE_TOKEN, status_code=204)
async def release_wake(request: Request, name: SubscriptionId, body: AnswerWake) -> Response:
    """A worker gives a wake back (§7.2)."""
    backend = backend_of(request)
    asked = WakeRequest(bearer(request), body.generation, body.wake_id)
    await backend.run(lambda: release(backend.stores, name, asked))
    return _nothing()


@router.get("/jwks.json", dependencies=_WAKE_TOKEN, response_model=KeySet)
async def webhook_keys(request: Request) -> Response:
    """The keys that sign webhooks (§6.5)."""
    backend = backend_of(request)
    keys = signing_keys(backend.settings, backend.stores)
    published = await backend.run(keys.published) if keys is not None else ()
    # The first key signs at once: no cache may hold a set without it.
    headers = {"Cache-Control": DOCUMENT if published else NO_STORE}
    return JSONResponse(render_jwks(published), headers=headers, media_type="application/jwk-set+json")


async def _answer(request: Request, name: str, kind: SubscriptionKind, body: AnswerWake) -> WakeAnswered:
    backend = backend_of(request)
    asked = WakeRequest(bearer(request), body.generation, body.wake_id, body.as_acks(), body.done)
    return {
        "ok": True,
        "next_wake": await backend.run(lambda: answer_wake(backend.stores, name, kind, asked)),
    }


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
    return Response(status_code=204, headers={"Content-Type": "application/json"})
