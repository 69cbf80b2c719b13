"""The operations of the durable proxy (§4 of its protocol), at `/v1/proxy` and `/v1/proxy/{call}`.

A token needs the right `proxy`, for the entry of the allow-list by name: `proxy:openai`, `proxy:*`. A signed
URL reads and aborts without a token, and is the only way to abort.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import urlencode
from weakref import WeakSet

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from tidemark.http import requests, responses
from tidemark.http.backend import Backend
from tidemark.http.paths import Operation
from tidemark.http.security.keys import SHARED_ALGORITHM, keys_of
from tidemark.http.streams import HungUp, cancel_on_disconnect, read_stream
from tidemark.observability.metrics import PROCESS
from tidemark.outbound.request import RequestBody
from tidemark.protocol import errors
from tidemark.protocol import proxy as rules
from tidemark.protocol.authorization import EVERYTHING, Access, RequiredScope, Right, Target
from tidemark.protocol.caching import NO_STORE, decide_private
from tidemark.protocol.messages import parse_content_type
from tidemark.proxy.calls import ANSWER_TTL_SECONDS, Calls, UpstreamCall, UpstreamRequest, answer_key
from tidemark.service.group_commit import ClientLeft
from tidemark.service.load import load_head
from tidemark.settings import InvalidSetting

#: How long a request waits for the upstream's headers; behind an HTTP API as long as a long-poll.
_ANSWER_SECONDS: Final = 61.0
#: How often a request with an `Idempotency-Key` may fail.
_ATTEMPTS: Final = 10
_CALLS_AT_ONCE: Final = 1000
#: Limit of request bodies that are not sent yet, in bytes; appends have the same limit.
_HELD_BYTES: Final = 16 * requests.MAX_BODY_BYTES
_CALL: Final = requests.PROXY_ROOT + "/{call}"
_PROXY: Final = frozenset({Right.PROXY})


def proxy_operations(backend: Backend) -> list[Operation]:
    """Raises InvalidSetting."""
    proxy = Proxy(backend)
    rights = (_PROXY, _demand)
    return [
        Operation("POST", requests.PROXY_ROOT, proxy.create, *rights),
        Operation("GET", _CALL, proxy.read, *rights, is_signed=_is_signed),
        Operation("HEAD", _CALL, proxy.metadata, *rights),
        Operation("PATCH", _CALL, proxy.abort),
        Operation("DELETE", _CALL, proxy.remove, *rights),
    ]


def _is_signed(scope: Scope) -> bool:
    return b"signature=" in scope["query_string"]


def _demand(request: Request, rights: frozenset[Right]) -> Iterator[RequiredScope]:
    """Any right to the proxy: for which entry, the handler looks."""
    access: Access = request.scope[requests.ACCESS]
    if not any(grant.right in rights for grant in access.grants):
        raise errors.Forbidden(["proxy"])
    return iter(())


class Proxy:
    """Raises InvalidSetting when it is made."""

    def __init__(self, backend: Backend) -> None:
        settings = backend.settings
        try:
            self._entries = rules.parse_allowed(settings.proxy_allow)
        except ValueError as error:
            raise InvalidSetting(str(error)) from None
        self._keys = keys_of(settings.authorization)
        has_secret = settings.authorization.secret or settings.authorization.secret_name
        if self._entries and self._keys and not has_secret:
            raise InvalidSetting("PROXY_ALLOW needs AUTH_SECRET or AUTH_SECRET_NAME: URLs are signed with it")
        self._backend, self._calls = backend, Calls(backend, backend.append)
        self._bodies = WeakSet[RequestBody]()

    async def create(self, request: Request) -> Response:
        """Call an upstream (§4.1), once for each `Idempotency-Key`."""
        url_text, method = (requests.single_header(request, f"Upstream-{name}") for name in ("URL", "Method"))
        if url_text is None:
            raise errors.ProxyError(400, "MISSING_UPSTREAM_URL", "Upstream-URL is missing: the URL to call")
        if method is None or method.upper() not in rules.UPSTREAM_METHODS:
            code = "MISSING_UPSTREAM_METHOD" if method is None else "INVALID_UPSTREAM_METHOD"
            raise errors.ProxyError(
                400, code, f"Upstream-Method must be one of {', '.join(rules.UPSTREAM_METHODS)}"
            )
        if requests.single_header(request, "Upstream-Authorization") == "":
            raise errors.Malformed(
                "Upstream-Authorization is empty: send the upstream's key, or leave it out"
            )
        url = rules.parse_upstream_url(url_text)
        entry = rules.allowing_entry(self._entries, url)
        access = _access(request)
        if not _may_call(access, entry.name):
            raise rules.upstream_not_allowed(f"The token's right to the proxy is not for {entry.name}")
        sent = list(rules.forwarded(request.headers.items()))
        sent = PROCESS.spans.carried(sent) if PROCESS.spans else sent
        asked = UpstreamRequest(
            "", url_text, method.upper(), sent, self._held(await requests.read_body(request))
        )
        request.scope.get(requests.GIVE_BACK, int)()  # Appends need not wait for the upstream.
        members = {"upstream": url.origin, "entry": entry.name, "subject": access.subject}
        call_id, call = await self._answered(request, asked, members)
        if call.content_type is None:
            return _refused(call)
        headers = {"Location": await self._signed_url(request, call_id)}
        headers |= {"Upstream-Content-Type": call.content_type, "Content-Type": "text/plain"}
        return Response(status_code=201, headers=headers)

    def _held(self, content: bytes) -> RequestBody:
        """Raises RateLimitExceeded."""
        if len(content) + sum(len(body.content) for body in self._bodies) > _HELD_BYTES:
            raise errors.RateLimitExceeded(
                1, f"Too many bodies wait for upstreams: this server holds {_HELD_BYTES >> 20} MiB"
            )
        self._bodies.add(body := RequestBody(content))
        return body

    async def _answered(
        self, request: Request, asked: UpstreamRequest, members: dict[str, Any]
    ) -> tuple[str, UpstreamCall]:
        """Begin the call, or find the one that was begun, and wait until it is answered. A repeated request
        passes over those that have failed."""
        key, calls = (await self._signing_keys())[0], self._calls
        once = requests.single_header(request, "Idempotency-Key")
        members["fingerprint"] = _digest(key, asked.method, asked.url, asked.body.content).hex()
        for attempt in range(_ATTEMPTS):
            seed = _digest(key, members["subject"], once, attempt) if once else uuid.uuid4().bytes
            call_id = str(uuid.UUID(bytes=seed[:16], version=4))
            if incarnation := await calls.begin(call_id, **members):
                asked = replace(asked, call_id=call_id, incarnation=incarnation)
                try:
                    await (self._backend.start or self._start)(asked)
                except errors.RateLimitExceeded:
                    await calls.remove(call_id)  # Want of room is no failure of the call.
                    raise
            else:
                call = await calls.end_if_lost(call_id, await calls.load(call_id))
                if call.fingerprint != members["fingerprint"]:
                    raise errors.Conflict("Idempotency-Key was used for another request; take a new one")
                if call.has_failed:
                    continue
            return call_id, await self._wait(request, call_id, is_repeatable=bool(once))
        raise errors.Conflict(
            f"The request with this Idempotency-Key has failed {_ATTEMPTS} times; take a new one"
        )

    async def _start(self, asked: UpstreamRequest) -> None:
        """Call the upstream in this process. Raises RateLimitExceeded."""
        calling = self._backend.calling
        if len(calling) >= _CALLS_AT_ONCE:
            raise errors.RateLimitExceeded(
                1, f"Too many upstreams at once: this server calls {_CALLS_AT_ONCE}"
            )
        from tidemark.proxy.pipe import carry_out  # With httpx's core, which most servers never need.

        task = asyncio.create_task(carry_out(self._calls, asked, self._entries))
        calling.add(task)
        task.add_done_callback(calling.discard)

    async def _wait(self, request: Request, call_id: str, *, is_repeatable: bool) -> UpstreamCall:
        """Wait for the upstream's headers. If nobody can repeat the request to get its answer, a client that
        leaves stops the upstream, as the time limit does."""
        waits = self._backend.settings.long_poll_seconds  # An HTTP API ends a request soon after.
        seconds = waits if "aws.event" in request.scope else _ANSWER_SECONDS
        answered = self._calls.until(call_id, lambda call: call.is_answered, seconds)
        try:
            call = await (answered if is_repeatable else cancel_on_disconnect(request.receive, answered))
        except errors.StreamNotFound:
            raise errors.Conflict("The call was deleted meanwhile; send the request again") from None
        except HungUp:
            await self._calls.append_entry(call_id, aborted=True)
            raise ClientLeft from None
        if call is None:
            if not is_repeatable:
                await self._calls.append_entry(call_id, aborted=True)
            raise errors.ProxyError(504, "UPSTREAM_TIMEOUT", "Upstream sent no headers in time")
        return call

    async def _signed_url(self, request: Request, call_id: str) -> str:
        """For as long as its stream stays without a reader (§7.4)."""
        expires = str(self._backend.stores.clock_ms() // 1000 + ANSWER_TTL_SECONDS)
        signature = rules.sign((await self._signing_keys())[0], call_id, expires)
        query = urlencode({"expires": expires, "signature": signature})
        return f"{responses.root_url(request)}{requests.PROXY_ROOT}/{call_id}?{query}"

    async def read(self, request: Request) -> Response:
        """Read the answer (§4.2), as every stream is read."""
        is_signed = _is_signed(request.scope)
        if is_signed:
            await self._check_signed(request)
        call = await self._live(request, is_owned=not is_signed)
        request.scope[requests.STREAM] = key = answer_key(_call_id(request))

        async def end_error() -> str | None:
            return (await self._calls.load(_call_id(request))).error

        response = await read_stream(request, self._backend, key, end_error)
        if "Stream-Closed" in response.headers and call.error is None:
            call = await self._calls.load(_call_id(request))
        response.headers.update(_call_headers(call))
        return response

    async def metadata(self, request: Request) -> Response:
        """§4.4."""
        call = await self._live(request, is_owned=True)
        head = await self._backend.call(load_head, answer_key(_call_id(request)))
        response = responses.metadata(head)
        response.headers.update(_call_headers(call))
        return response

    async def abort(self, request: Request) -> Response:
        """Stop the upstream (§4.3)."""
        await self._check_signed(request)
        if requests.single(request, "action") != "abort":
            raise errors.ProxyError(400, "INVALID_ACTION", "action must be abort")
        await self._calls.append_entry(_call_id(request), aborted=True)
        return Response(status_code=204, headers=responses.EMPTY)

    async def remove(self, request: Request) -> Response:
        """Stop the upstream, and delete its answer (§4.5)."""
        try:
            await self._live(request, is_owned=True)
        except errors.StreamNotFound:
            pass
        else:
            await self._calls.remove(_call_id(request))
        return Response(status_code=204, headers=responses.EMPTY)

    async def _live(self, request: Request, *, is_owned: bool) -> UpstreamCall:
        """The call, which is ended if its process has. Raises StreamNotFound, also for a token of
        another subject."""
        call_id = _call_id(request)
        call = await self._calls.load(call_id)
        access = _access(request)
        if is_owned and not (_may_call(access, call.entry) and access.subject == call.subject):
            raise errors.StreamNotFound
        return await self._calls.end_if_lost(call_id, call) if self._entries else call

    async def _check_signed(self, request: Request) -> None:
        given = requests.single(request, "expires"), requests.single(request, "signature")
        keys = await self._signing_keys()
        rules.check_signature(
            keys, request.path_params["call"], *given, self._backend.stores.clock_ms() / 1000
        )

    async def _signing_keys(self) -> list[bytes]:
        """Return keys derived from the deployment's secrets. The first key signs; each verifies. An open
        server has no secret, and everybody may do everything there."""
        find = [partial(keys.find, SHARED_ALGORITHM, None) for keys in self._keys]
        secrets = [secret for each in find for secret in await asyncio.to_thread(each)]
        return [hmac.digest(secret, b"tidemark proxy", "sha256") for secret in secrets or [b"open"]]


def _call_id(request: Request) -> str:
    """Raises StreamNotFound for one that this server never gives."""
    call_id: str = request.path_params["call"]
    if not re.fullmatch("[0-9a-f-]{36}", call_id):
        raise errors.StreamNotFound
    return call_id


def _access(request: Request) -> Access:
    access: Access = request.scope.get(requests.ACCESS, EVERYTHING)
    return access


def _may_call(access: Access, name: str) -> bool:
    return any(grant.right is Right.PROXY and grant.covers(Target(name)) for grant in access.grants)


def _digest(key: bytes, *parts: object) -> bytes:
    """Return a keyed hash, which does not reveal the parts."""
    return hmac.digest(key, repr(parts).encode(), "sha256")


def _refused(call: UpstreamCall) -> Response:
    """§4.1, the errors. An upstream's own error is handed on."""
    refusal = call.refusal or {"status": 502, "code": "UPSTREAM_ERROR", "message": f"No answer: {call.error}"}
    if "code" in refusal:
        raise errors.ProxyError(refusal["status"], refusal["code"], refusal["message"])
    try:
        content_type = parse_content_type(refusal["content_type"])
    except errors.Malformed:
        content_type = parse_content_type("text/plain")
    headers = responses.data_headers(content_type)
    # A refusal that an older release stored has no headers. CORS lets pages read them.
    headers |= (own := refusal.get("headers", {}))
    headers |= {"Access-Control-Expose-Headers": ", ".join(own)} if own else {}
    headers |= {"Upstream-Status": str(refusal["upstream_status"]), "Cache-Control": NO_STORE}
    return Response(base64.b64decode(refusal["body"]), refusal["status"], headers)


def _call_headers(call: UpstreamCall) -> dict[str, str]:
    """Return the headers of a read. No cache keeps an answer: its URL is a secret."""
    headers = {"Cache-Control": decide_private(None, token_in_query=True)}
    if call.content_type is not None:
        headers["Upstream-Content-Type"] = call.content_type
    if call.error:
        headers["Upstream-Error"] = call.error
    return headers
