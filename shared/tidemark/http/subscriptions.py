"""Subscriptions over HTTP, below `/v1/stream/__ds/` (§6, §7)."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Depends, Path, Query, Security
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidemark.http import subscription_bodies as bodies
from tidemark.http.backend import Backend
from tidemark.http.dependencies import ALL_SUBSCRIPTIONS, SUBSCRIPTION, AskedPage, Granted, Served, id_prefix
from tidemark.http.responses import root_url
from tidemark.http.streams import HungUp, cancel_on_disconnect
from tidemark.observability.metrics import PROCESS
from tidemark.protocol.authorization import Access, RequiredScope, Right, Target
from tidemark.protocol.caching import DOCUMENT, NO_STORE
from tidemark.protocol.errors import InvalidSubscription
from tidemark.protocol.stream_key import PLAIN_BUCKET, parse_plain_listing
from tidemark.subscriptions import configuration, lifecycle
from tidemark.subscriptions.records import StreamLink, SubscriptionRecord
from tidemark.subscriptions.signing_keys import KeySet, SigningKeys, connect_signing_keys, render_jwks
from tidemark.subscriptions.storage import load_window
from tidemark.subscriptions.takes import Take, take
from tidemark.subscriptions.workers import Answer, answer, claim, deliver_now

#: The most streams in one response.
PAGE: Final = 1_000
router: Final = APIRouter(
    prefix="/v1/stream/__ds",
    tags=["subscriptions"],
    responses={
        400: {"description": "The request breaks a rule of form.", "model": bodies.SubscriptionRefusal}
    },
)


def _response(
    status: int, description: str, model: type = bodies.SubscriptionRefusal
) -> dict[int | str, dict[str, Any]]:
    return {status: {"description": description, "model": model}}


_ONE: Final = "/subscriptions/{id}"
_FENCED: Final = _response(409, "The delivery has ended, or an offset cannot be acked.")
_SEE: Final = [Security(SUBSCRIPTION, scopes=["write", "manage"])]
_MANAGE: Final = [Security(SUBSCRIPTION, scopes=["manage"])]
#: Callbacks, acks and releases carry the token of their delivery, which `answer` checks.
_OWN_TOKEN: Final = [Security(SUBSCRIPTION)]

Id = Annotated[str, Path(alias="id")]


async def delivery_token(request: Request) -> str | None:
    scheme, _, token = (request.headers.get("Authorization") or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


DeliveryToken = Annotated[str | None, Depends(delivery_token)]


def _signing_keys(backend: Backend) -> SigningKeys | None:
    return connect_signing_keys(backend.settings, backend.stores)


async def _active_kid(backend: Backend, keys: SigningKeys) -> str:
    """The id of the active signing key. The first call creates the key, because only this function may save
    one."""
    return (await backend.run(partial(keys.active, backend.stores.clock_ms()))).kid


@router.get("/subscriptions", dependencies=[Security(ALL_SUBSCRIPTIONS, scopes=["write", "manage"])])
async def list_subscriptions(backend: Served, page: AskedPage) -> bodies.SubscriptionPage:
    """List the subscriptions whose ids begin with `prefix` (an extension)."""
    asked = parse_plain_listing(page.prefix, page.after, page.limit)
    records, next_cursor = await backend.call(
        lifecycle.page_of_subscriptions, asked.prefix, asked.after, asked.limit
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
    responses=_response(200, "The subscription exists as asked for.", bodies.SubscriptionDescription)
    | _response(409, "Another subscription has the id."),
)
async def create_subscription(
    request: Request, backend: Served, name: Id, access: Granted, body: bodies.CreateSubscription
) -> Response:
    """Create a subscription (§6.2)."""
    asked = body.configuration(allow_local=backend.settings.allows_local_webhooks)
    keys = _signing_keys(backend)
    if asked.kind is configuration.SubscriptionKind.WEBHOOK and keys is None:
        raise InvalidSubscription("Webhooks are not enabled on this server (WEBHOOK_KEYS is not set)")
    check_may_follow(access, asked)
    if asked.kind is configuration.SubscriptionKind.WEBHOOK and keys is not None:
        await _active_kid(backend, keys)  # Before anything can be delivered.
    is_new = await backend.call(lifecycle.subscribe, name, asked, id_prefix(access, name))
    return JSONResponse(await describe_subscription(request, backend, name), 201 if is_new else 200)


@router.get(_ONE, dependencies=_SEE, response_model_exclude_unset=True)
async def describe_subscription(
    request: Request,
    backend: Served,
    name: Id,
    after: Annotated[str, Query(description="The `streams_after` of the page before.")] = "",
) -> bodies.SubscriptionDescription:
    """Get a subscription's state and its streams (§6.3).

    `after` continues a list of streams that was too long for one response."""
    after = configuration.stream_path(after) if after else ""
    record = await backend.call(lifecycle.require_subscription, name)
    if record.configuration.kind is configuration.SubscriptionKind.SHARED:
        return await _describe_shared(backend, record)
    links, next_after = await backend.call(lifecycle.list_links, record, after, PAGE)
    signing: bodies.SigningDescription | None = None
    keys = _signing_keys(backend)
    if record.configuration.webhook_url is not None and keys is not None:
        kid = await _active_kid(backend, keys)
        signing = {"alg": "ed25519", "kid": kid, "jwks_url": jwks_url(request, backend)}
    return bodies.render_subscription(record, links, next_after, signing)


async def _describe_shared(backend: Backend, record: SubscriptionRecord) -> bodies.SubscriptionDescription:
    window = await backend.run(partial(load_window, backend.stores.table, record))
    [path], committed = record.configuration.streams, window.committed
    link = StreamLink(record.incarnation, path, explicit=True, acked=committed, stream_incarnation="")
    rendered = bodies.render_subscription(record, [link], None, None)
    rendered["shared"] = bodies.render_shared(record, window, backend.stores.clock_ms())
    return rendered


@router.delete(_ONE, dependencies=_MANAGE, status_code=204)
async def delete_subscription(backend: Served, name: Id) -> None:
    """Delete a subscription (§6.3). Succeeds if the subscription does not exist."""
    await backend.call(lifecycle.unsubscribe, name)


@router.post(f"{_ONE}/streams", dependencies=_MANAGE, status_code=204)
async def name_streams(backend: Served, name: Id, access: Granted, body: bodies.NameStreams) -> None:
    """Add streams to follow by name (§6.4)."""
    paths = [configuration.stream_path(path) for path in body.streams]
    for path in paths:
        _check(access, Right.READ, path)
    await backend.call(lifecycle.add_streams, name, paths)


@router.delete(f"{_ONE}/streams/{{path}}", dependencies=_MANAGE, status_code=204)
async def unname_stream(backend: Served, name: Id, path: str) -> None:
    """Remove a stream that was added by name (§6.4)."""
    await backend.call(lifecycle.remove_stream, name, configuration.stream_path(path))


@router.post(
    f"{_ONE}/wake",
    dependencies=_MANAGE,
    status_code=202,
    responses=_response(409, "A worker holds the claim, or nothing is pending."),
)
async def wake_subscription(backend: Served, name: Id) -> bodies.WakeDescription:
    """Deliver the pending wake now (an extension).

    The delivery does not wait for the time of the next attempt."""
    return bodies.render_delivery((await backend.call(deliver_now, name)).delivery)


@router.post(f"{_ONE}/callback", dependencies=_OWN_TOKEN, responses=_FENCED)
async def callback(
    backend: Served, name: Id, token: DeliveryToken, body: bodies.AnswerWake
) -> bodies.WakeAnswered:
    """Acknowledge a wake from a webhook, after its response (§7.1)."""
    return await _answer(backend, name, configuration.SubscriptionKind.WEBHOOK, token, body)


@router.post(
    f"{_ONE}/claim",
    dependencies=_SEE,
    responses=_response(409, "Another worker holds the claim, or nothing is pending."),
)
async def claim_wake(backend: Served, name: Id, body: bodies.ClaimWake) -> bodies.ClaimDescription:
    """Claim a wake for a worker (§7.2)."""
    return bodies.render_claim(await backend.call(claim, name, body.worker))


@router.post(f"{_ONE}/ack", dependencies=_OWN_TOKEN, responses=_FENCED)
async def ack_wake(
    backend: Served, name: Id, token: DeliveryToken, body: bodies.AnswerWake
) -> bodies.WakeAnswered:
    """Acknowledge processed offsets as a worker (§7.2)."""
    return await _answer(backend, name, configuration.SubscriptionKind.PULL_WAKE, token, body)


@router.post(f"{_ONE}/release", dependencies=_OWN_TOKEN, status_code=204, responses=_FENCED)
async def release_wake(backend: Served, name: Id, token: DeliveryToken, body: bodies.AnswerWake) -> None:
    """Release a claimed wake (§7.2)."""
    released = body.model_copy(update={"acks": [], "done": True})
    await _answer(backend, name, configuration.SubscriptionKind.PULL_WAKE, token, released)


@router.post(f"{_ONE}/take", dependencies=_SEE, response_model=bodies.TakenMessages)
async def take_messages(
    request: Request, backend: Served, name: Id, access: Granted, body: bodies.TakeMessages
) -> Response:
    """Take messages of a shared subscription, and settle earlier ones (an extension).

    Each message goes to one worker, and comes again if it is not done when its lease ends."""
    wait_seconds = min(body.wait_seconds, backend.settings.long_poll_seconds)
    lease_ms = None if body.lease_seconds is None else round(body.lease_seconds * 1000)
    check_read = partial(_check, access, Right.READ)
    asked = Take(body.settlement(), body.max_messages, lease_ms, check_read)
    try:
        with PROCESS.waiting("take") if body.wait_seconds else nullcontext():
            taking = take(backend, backend.turn(name), name, asked, wait_seconds)
            taken = await cancel_on_disconnect(request.receive, taking)
    except HungUp:
        return Response(status_code=204)  # The client has disconnected.
    return Response(orjson.dumps(bodies.render_taken(taken)), media_type="application/json")


@router.post(f"{_ONE}/done", dependencies=_SEE)
async def settle_messages(backend: Served, name: Id, body: bodies.SettleMessages) -> bodies.LateReceipts:
    """Settle messages of a shared subscription (an extension)."""
    return {"late": list((await take(backend, backend.turn(name), name, Take(body.settlement()), 0)).late)}


class KeySetResponse(JSONResponse):
    media_type = "application/jwk-set+json"


@router.get("/jwks.json", dependencies=_OWN_TOKEN, response_model=KeySet, response_class=KeySetResponse)
async def webhook_keys(backend: Served) -> Response:
    """Get the public keys for the signatures of webhooks (§6.5)."""
    keys = _signing_keys(backend)
    published = await backend.run(keys.published) if keys is not None else ()
    # An empty set is not cached, because the first key is used for signatures as soon as it exists.
    headers = {"Cache-Control": DOCUMENT if published else NO_STORE}
    return KeySetResponse(render_jwks(published), headers=headers)


async def _answer(
    backend: Backend,
    name: str,
    kind: configuration.SubscriptionKind,
    token: str | None,
    body: bodies.AnswerWake,
) -> bodies.WakeAnswered:
    answered = Answer(token, body.generation, body.wake_id, body.offsets(), body.done)
    return {"ok": True, "next_wake": await backend.call(answer, name, kind, answered)}


def check_may_follow(access: Access, asked: configuration.SubscriptionConfiguration) -> None:
    """Check that the token may read the streams, whose appends a subscription reveals, and write to the wake
    stream and the dead-letter stream. Raises Forbidden, StreamNotFound."""
    for path in asked.streams:
        _check(access, Right.READ, path)
    if asked.pattern is not None:
        _check(access, Right.READ, configuration.literal_prefix(asked.pattern), is_prefix=True)
    for written in filter(None, (asked.wake_stream, asked.dead_letter_stream)):
        _check(access, Right.WRITE, written)


def _check(access: Access, right: Right, path: str, *, is_prefix: bool = False) -> None:
    access.check(RequiredScope(Target(PLAIN_BUCKET, path, is_prefix=is_prefix), frozenset({right})))


def jwks_url(request: Request, backend: Backend) -> str:
    """The key set's URL, below the configured public URL or else the URL that the client used."""
    return f"{backend.settings.public_url or root_url(request)}/v1/stream/__ds/jwks.json"
