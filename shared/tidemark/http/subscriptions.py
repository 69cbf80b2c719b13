"""Subscriptions over HTTP, below `/v1/stream/__ds/` (§6, §7)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Concatenate, Final, ParamSpec, TypeVar

from fastapi import APIRouter, Query, Security
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidemark.http import subscription_bodies as bodies
from tidemark.http.backend import Backend, backend_of
from tidemark.http.catalog import PageQuery
from tidemark.http.requests import ACCESS
from tidemark.http.responses import root_url
from tidemark.http.routing import ControlRoute
from tidemark.http.scopes import ALL_SUBSCRIPTIONS, SUBSCRIPTION
from tidemark.protocol.authorization import Access, RequiredScope, Right, Target
from tidemark.protocol.caching import DOCUMENT, NO_STORE
from tidemark.protocol.errors import InvalidSubscription
from tidemark.protocol.stream_key import PLAIN_BUCKET
from tidemark.service.stores import Stores
from tidemark.subscriptions import lifecycle
from tidemark.subscriptions.configuration import (
    SubscriptionConfiguration,
    SubscriptionKind,
    literal_prefix,
    stream_path,
)
from tidemark.subscriptions.signing_keys import KeySet, SigningKeys, connect_signing_keys, render_jwks
from tidemark.subscriptions.workers import Answer, answer, claim, deliver_now

#: Streams that one response lists.
PAGE: Final = 1_000
router: Final = APIRouter(
    prefix="/v1/stream/__ds",
    route_class=ControlRoute,
    tags=["subscriptions"],
    responses={
        400: {"description": "The request breaks a rule of form.", "model": bodies.SubscriptionRefusal}
    },
)
_ONE: Final = "/subscriptions/{id:id}"
_SEE: Final = [Security(SUBSCRIPTION, scopes=["write", "manage"])]
_MANAGE: Final = [Security(SUBSCRIPTION, scopes=["manage"])]
#: Callbacks, acks and releases carry the token of their delivery, which `answer` checks.
_OWN_TOKEN: Final = [Security(SUBSCRIPTION)]

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def _ask(
    request: Request, call: Callable[Concatenate[Stores, str, _P], _T], *args: _P.args, **kwargs: _P.kwargs
) -> _T:
    """About the subscription in the path."""
    return await backend_of(request).call(call, request.path_params["id"], *args, **kwargs)


def _signing_keys(request: Request) -> SigningKeys | None:
    backend = backend_of(request)
    return connect_signing_keys(backend.settings, backend.stores)


async def _active_kid(request: Request, keys: SigningKeys) -> str:
    """The first one is made now: only this function may save a key."""
    backend = backend_of(request)
    return (await backend.run(partial(keys.active, backend.stores.clock_ms()))).kid


@router.get("/subscriptions", dependencies=[Security(ALL_SUBSCRIPTIONS, scopes=["write", "manage"])])
async def list_subscriptions(
    request: Request, page: Annotated[PageQuery, Query()]
) -> bodies.SubscriptionPage:
    """List the subscriptions whose ids begin with `prefix` (an extension)."""
    backend, asked = backend_of(request), page.listing()
    records, next_cursor = await backend.call(
        lifecycle.list_subscriptions, asked.prefix, asked.after, asked.limit
    )
    return {
        "prefix": asked.prefix,
        "subscriptions": [bodies.render_listed(record) for record in records],
        "next_cursor": next_cursor,
        "has_more": next_cursor is not None,
    }


@router.put(
    _ONE,
    dependencies=_MANAGE,
    response_model=bodies.SubscriptionDescription,
    status_code=201,
    responses={200: {"description": "There already, the same.", "model": bodies.SubscriptionDescription}},
)
async def create_subscription(request: Request, body: bodies.CreateSubscription) -> Response:
    """Create a subscription (§6.2)."""
    asked = body.configuration(allow_local=backend_of(request).settings.allows_local_webhooks)
    keys = _signing_keys(request)
    if asked.kind is SubscriptionKind.WEBHOOK and keys is None:
        raise InvalidSubscription("Webhooks are not enabled on this server (WEBHOOK_KEYS is not set)")
    check_may_follow(request, asked)
    if asked.kind is SubscriptionKind.WEBHOOK and keys is not None:
        await _active_kid(request, keys)  # Before anything can be delivered.
    is_new = await _ask(request, lifecycle.subscribe, asked)
    return JSONResponse(await _describe(request), 201 if is_new else 200)


@router.get(_ONE, dependencies=_SEE, response_model_exclude_unset=True)
async def describe_subscription(
    request: Request,
    after: Annotated[str, Query(description="The `streams_after` of the page before.")] = "",
) -> bodies.SubscriptionDescription:
    """Its state and its streams (§6.3).

    `after` continues a list of streams that was cut."""
    return await _describe(request, stream_path(after) if after else "")


async def _describe(request: Request, after: str = "") -> bodies.SubscriptionDescription:
    backend, record = backend_of(request), await _ask(request, lifecycle.require_subscription)
    links, next_after = await backend.call(lifecycle.list_links, record, after, PAGE)
    signing: bodies.SigningDescription | None = None
    keys = _signing_keys(request)
    if record.configuration.webhook_url is not None and keys is not None:
        kid = await _active_kid(request, keys)
        signing = {"alg": "ed25519", "kid": kid, "jwks_url": jwks_url(request, backend)}
    return bodies.render_subscription(record, links, next_after, signing)


@router.delete(_ONE, dependencies=_MANAGE, status_code=204)
async def delete_subscription(request: Request) -> Response:
    """Delete a subscription (§6.3). Deleting what is not there succeeds."""
    await _ask(request, lifecycle.unsubscribe)
    return _nothing()


@router.post(f"{_ONE}/streams", dependencies=_MANAGE, status_code=204)
async def name_streams(request: Request, body: bodies.NameStreams) -> Response:
    """Follow streams by name (§6.4)."""
    paths = [stream_path(path) for path in body.streams]
    for path in paths:
        _check(request, Right.READ, path)
    await _ask(request, lifecycle.add_streams, paths)
    return _nothing()


@router.delete(f"{_ONE}/streams/{{path:segments}}", dependencies=_MANAGE, status_code=204)
async def unname_stream(request: Request) -> Response:
    """Follow a stream by its name no more (§6.4)."""
    await _ask(request, lifecycle.remove_stream, stream_path(request.path_params["path"]))
    return _nothing()


@router.post(f"{_ONE}/wake", dependencies=_MANAGE, status_code=202)
async def wake_subscription(request: Request) -> bodies.WakeDescription:
    """Deliver now (an extension).

    The pending wake is delivered now, and not at the time of the next attempt."""
    return bodies.render_delivery((await _ask(request, deliver_now)).delivery)


@router.post(f"{_ONE}/callback", dependencies=_OWN_TOKEN)
async def callback(request: Request, body: bodies.AnswerWake) -> bodies.WakeAnswered:
    """A webhook's later answer (§7.1)."""
    return await _answer(request, SubscriptionKind.WEBHOOK, body)


@router.post(f"{_ONE}/claim", dependencies=_SEE)
async def claim_wake(request: Request, body: bodies.ClaimWake) -> bodies.ClaimDescription:
    """A worker takes a wake (§7.2)."""
    return bodies.render_claim(await _ask(request, claim, body.worker))


@router.post(f"{_ONE}/ack", dependencies=_OWN_TOKEN)
async def ack_wake(request: Request, body: bodies.AnswerWake) -> bodies.WakeAnswered:
    """A worker acknowledges (§7.2)."""
    return await _answer(request, SubscriptionKind.PULL_WAKE, body)


@router.post(f"{_ONE}/release", dependencies=_OWN_TOKEN, status_code=204)
async def release_wake(request: Request, body: bodies.AnswerWake) -> Response:
    """A worker gives a wake back (§7.2)."""
    released = body.model_copy(update={"acks": [], "done": True})
    await _answer(request, SubscriptionKind.PULL_WAKE, released)
    return _nothing()


class KeySetResponse(JSONResponse):
    media_type = "application/jwk-set+json"


@router.get("/jwks.json", dependencies=_OWN_TOKEN, response_model=KeySet, response_class=KeySetResponse)
async def webhook_keys(request: Request) -> Response:
    """The keys that sign webhooks (§6.5)."""
    keys = _signing_keys(request)
    published = await backend_of(request).run(keys.published) if keys is not None else ()
    # The first key signs at once: no cache may hold a set without it.
    headers = {"Cache-Control": DOCUMENT if published else NO_STORE}
    return KeySetResponse(render_jwks(published), headers=headers)


async def _answer(request: Request, kind: SubscriptionKind, body: bodies.AnswerWake) -> bodies.WakeAnswered:
    scheme, _, token = (request.headers.get("Authorization") or "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" and token.strip() else None
    answered = Answer(bearer, body.generation, body.wake_id, body.offsets(), body.done)
    return {"ok": True, "next_wake": await _ask(request, answer, kind, answered)}


def check_may_follow(request: Request, asked: SubscriptionConfiguration) -> None:
    """A subscription tells its creator about appends to its streams, and writes to its wake stream: the token
    must grant both. Raises Forbidden, StreamNotFound."""
    for path in asked.streams:
        _check(request, Right.READ, path)
    if asked.pattern is not None:
        _check(request, Right.READ, literal_prefix(asked.pattern), is_prefix=True)
    if asked.wake_stream is not None:
        _check(request, Right.WRITE, asked.wake_stream)


def _check(request: Request, right: Right, path: str, *, is_prefix: bool = False) -> None:
    access: Access | None = request.scope.get(ACCESS)
    if access is not None:
        access.check(RequiredScope(Target(PLAIN_BUCKET, path, is_prefix=is_prefix), frozenset({right})))


def jwks_url(request: Request, backend: Backend) -> str:
    """On the configured public URL; without one, where the client itself has reached this server."""
    return f"{backend.settings.public_url or root_url(request)}/v1/stream/__ds/jwks.json"


def _nothing() -> Response:
    """A 204 without a type leaves an HTTP API as application/json."""
    return Response(status_code=204, headers={"Content-Type": "application/json"})
