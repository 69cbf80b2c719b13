"""Every operation of the service, in one table.

Routing, 405 and `Allow`, the rights that a token needs, and the OpenAPI document come from it. To add an
endpoint, write an entry here, its handler, and a test. With authorization on, a path that is not in the table
is not served.

Handlers are named and not imported: what an environment never serves, it does not load.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from tidemark.http.requests import (
    STREAM_ROOT,
    STREAM_ROOTS,
    parse_fork,
    parse_stream,
    parse_stream_parameter,
    single,
)
from tidemark.protocol.authorization import RequiredScope, Right, Target
from tidemark.protocol.bucket import Resource
from tidemark.protocol.errors import BucketNotFound, ProtocolError, SourceNotFound
from tidemark.protocol.stream_key import PLAIN_BUCKET, RESERVED_SEGMENT

Handler = Callable[[Request], Awaitable[Response]]
Demand = Callable[[Request, frozenset[Right]], Iterator[RequiredScope]]
"""The scopes that a request requires, given the rights of which any is enough. Raises the ProtocolError of an
invalid name."""
Answers = Mapping[int, tuple[str, ...]]
"""A meaning, and the names of headers, for each status of an operation's own."""


@dataclass(frozen=True, slots=True)
class Operation:
    """`handler` is `module:function` below `tidemark.http`; its first line of documentation is the summary. A
    token needs any of `rights`; an operation without rights needs no token, or its handler checks it.

    The rest is for the OpenAPI document: `takes` names parameters; `body` and `returns` are `bytes`, `json`,
    or `module:model` below `tidemark`."""

    method: str
    handler: str
    rights: str
    answers: Answers = field(default_factory=lambda: {200: ("It.",)})
    takes: tuple[str, ...] = ()
    body: str = ""
    returns: str = ""

    def load(self) -> Handler:
        return _load(self.handler)

    @property
    def sufficient(self) -> frozenset[Right]:
        return frozenset(map(Right, self.rights.split()))


@cache
def _load(handler: str) -> Handler:
    module, _, name = handler.partition(":")
    loaded: Handler = getattr(import_module(f"tidemark.http.{module}"), name)
    return loaded


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path and its operations, one for each method. Without a `demand` it needs no scopes; without a `tag`
    it is not in the OpenAPI document. `suffix` tells the operations of one path from those of another."""

    path: str
    tag: str
    demand: Demand | None
    operations: tuple[Operation, ...]
    suffix: str = ""
    by_method: Mapping[str, Operation] = field(init=False)

    def __post_init__(self) -> None:
        by_method = {operation.method: operation for operation in self.operations}
        if "GET" in by_method:  # HEAD is GET without the body, which `ResponseHeaders` leaves out.
            by_method.setdefault("HEAD", by_method["GET"])
        object.__setattr__(self, "by_method", by_method)


# --- what a token must grant ------------------------------------------------------------

#: The service's messages, word for word.
_NO_BUCKET: Final = BucketNotFound().message
_NO_SOURCE: Final = SourceNotFound().message
_SUBSCRIPTIONS: Final = f"{RESERVED_SEGMENT}/subscriptions/"


def _stream(request: Request, rights: frozenset[Right]) -> Iterator[RequiredScope]:
    """A fork reads its source and keeps its name in use; for that a right to read is not enough. The
    creation reports errors in the headers."""
    key = parse_stream(request)
    yield RequiredScope(Target(key.bucket, key.stream_id), rights)
    if request.method != "PUT":
        return
    try:
        fork = parse_fork(request)
    except ProtocolError:
        return
    if fork is not None:
        source = Target(fork.source.bucket, fork.source.stream_id)
        yield RequiredScope(source, frozenset({Right.READ}), absent=_NO_SOURCE)
        yield RequiredScope(source, frozenset({Right.FORK, Right.WRITE, Right.MANAGE}))


def _below_stream(request: Request, rights: frozenset[Right]) -> Iterator[RequiredScope]:
    params = request.path_params
    yield RequiredScope(Target(params["bucket"], params["stream"]), rights)


def _bucket(request: Request, rights: frozenset[Right]) -> Iterator[RequiredScope]:
    yield RequiredScope(Target(request.path_params["bucket"]), rights, _NO_BUCKET)


def _streams_of_bucket(request: Request, rights: frozenset[Right]) -> Iterator[RequiredScope]:
    prefix = request.query_params.get("prefix", "")
    yield RequiredScope(Target(request.path_params["bucket"], prefix, is_prefix=True), rights, _NO_BUCKET)


def _plain_streams(request: Request, rights: frozenset[Right]) -> Iterator[RequiredScope]:
    missing = f"A list of streams takes read:{PLAIN_BUCKET}, or a prefix that the token may read"
    prefix = single(request, "prefix") or ""
    yield RequiredScope(Target(PLAIN_BUCKET, prefix, is_prefix=True), rights, missing)


def _all_buckets(_: Request, rights: frozenset[Right]) -> Iterator[RequiredScope]:
    yield RequiredScope(Target(None), rights, "The list of buckets takes read:*")


def _server(_: Request, rights: frozenset[Right]) -> Iterator[RequiredScope]:
    yield RequiredScope(Target(None), rights)


def _named_stream(request: Request, rights: frozenset[Right]) -> Iterator[RequiredScope]:
    key = parse_stream_parameter(single(request, "stream"))
    yield RequiredScope(Target(key.bucket, key.stream_id), rights)


def _nothing(_request: Request, _rights: frozenset[Right]) -> Iterator[RequiredScope]:
    """Every token may ask for its own scopes."""
    return iter(())


def _subscription(request: Request, rights: frozenset[Right]) -> Iterator[RequiredScope]:
    """Subscriptions are named like streams, `v1/__ds/subscriptions/<id>`. A client with only read scopes does
    not see them: they have the URLs of webhooks."""
    name = _SUBSCRIPTIONS + request.path_params.get("id", "")
    yield RequiredScope(Target(PLAIN_BUCKET, name), rights)


def _all_subscriptions(request: Request, rights: frozenset[Right]) -> Iterator[RequiredScope]:
    missing = (
        f"A list of subscriptions takes write or manage of {PLAIN_BUCKET}/{_SUBSCRIPTIONS}*, "
        "or a prefix of ids that the token may see"
    )
    ids = _SUBSCRIPTIONS + (single(request, "prefix") or "")
    yield RequiredScope(Target(PLAIN_BUCKET, ids, is_prefix=True), rights, missing)


# --- the table --------------------------------------------------------------------------

_GONE: Final[Answers] = {204: ("It is gone.",)}
_DONE: Final[Answers] = {204: ("Done.",)}
_TAIL: Final = ("Stream-Next-Offset", "Stream-Closed")
_READ: Final = (*_TAIL, "ETag", "Stream-Up-To-Date", "Stream-Cursor", "Stream-SSE-Data-Encoding")
_APPENDED: Final = (*_TAIL, "ETag", "Producer-Epoch", "Producer-Seq")
_LIMITS: Final = ("Stream-TTL", "Stream-Expires-At", "Stream-Retain-Seconds", "Stream-Retain-Bytes")
_FORK: Final = ("Stream-Forked-From", "Stream-Fork-Offset", "Stream-Fork-Sub-Offset")
_PRODUCER: Final = ("Producer-Id", "Producer-Epoch", "Producer-Seq")
_SNAPSHOT: Final = ("Stream-Snapshot-Offset", "Stream-Next-Offset", "Stream-Up-To-Date")
_PAGE: Final = ("prefix", "after", "limit")

_CREATED: Final[Answers] = {
    201: ("It was made.", "Location", *_TAIL),
    200: ("It was there already, the same.", *_TAIL, "ETag"),
    409: ("A different stream is there, or the source cannot be forked.",),
    413: ("The body is too large.",),
}
_APPENDING: Final[Answers] = {
    200: ("A producer's append was accepted.", *_APPENDED),
    204: ("Accepted, or a producer's repetition of what was.", *_APPENDED),
    403: ("The producer's epoch is stale, or the token does not grant this.", "Producer-Epoch"),
    409: (
        "Closed, of another type, or out of sequence.",
        *_TAIL,
        "Producer-Expected-Seq",
        "Producer-Received-Seq",
    ),
    412: ("`If-Match` names another tail.", "ETag", "Stream-Next-Offset"),
    413: ("The body is too large.",),
}
_READING: Final[Answers] = {
    200: ("Data, events, or nothing yet.", *_READ, "Stream-Retained-Offset"),
    204: ("Nothing came while waiting.", *_READ, "Stream-Retained-Offset"),
    304: ("The client has it already.", *_READ, "Stream-Retained-Offset"),
}
#: PUT changes no existing stream, so the right to write is enough to create one, as agents do that own a
#: prefix. The right to manage is enough too: managers set up streams for other writers.
_STREAM: Final = (
    Operation(
        "PUT", "routes:create_stream", "write manage", _CREATED, (*_LIMITS, "Stream-Closed", *_FORK), "bytes"
    ),
    Operation(
        "POST",
        "routes:append_to_stream",
        "write",
        _APPENDING,
        ("Stream-Closed", "Stream-Seq", *_PRODUCER, "If-Match"),
        "bytes",
    ),
    Operation(
        "GET",
        "routes:read_stream",
        "read",
        _READING,
        ("offset", "live", "cursor", "access_token", "If-None-Match"),
        returns="bytes",
    ),
    Operation(
        "HEAD",
        "routes:stream_metadata",
        "read",
        {200: ("It is there.", *_TAIL, "ETag", *_LIMITS, "Stream-Retained-Offset")},
    ),
    Operation("DELETE", "routes:delete_stream", "manage", _GONE),
)
_BUCKET: Final = (
    Operation("GET", "buckets:describe_bucket", "read", returns="json"),
    Operation(
        "PUT",
        "buckets:create_bucket",
        "manage",
        {201: ("It was made.", "Location"), 409: ("It is there.",)},
        returns="json",
    ),
    Operation("DELETE", "buckets:remove_bucket", "manage", {**_GONE, 409: ("It is not empty.",)}),
)
#: A snapshot makes older data unreadable, so publishing takes the right to manage, not to write.
_ONE_SNAPSHOT: Final = (
    Operation(
        "GET",
        "buckets:get_snapshot",
        "read",
        {200: ("Its bytes.", *_SNAPSHOT), 307: ("Where its bytes are, for a while.", "Location", *_SNAPSHOT)},
        returns="bytes",
    ),
    Operation(
        "PUT",
        "buckets:put_snapshot",
        "manage",
        {
            204: ("It is the latest.", "Stream-Snapshot-Offset"),
            409: ("Beyond the tail, or the upload is not there.", "Stream-Next-Offset"),
            413: ("Too large for one request.",),
        },
        ("Snapshot-Upload",),
        "bytes",
    ),
    Operation("DELETE", "buckets:remove_snapshot", "manage", {**_GONE, 409: ("It is the latest.",)}),
)
_LISTING: Final = Operation("GET", "buckets:list_bucket", "read", takes=_PAGE, returns="json")
_LATEST: Final = Operation(
    "GET",
    "buckets:redirect_to_latest",
    "read",
    {307: ("There.", "Location", "Stream-Snapshot-Offset")},
)
_UPLOAD: Final = Operation(
    "POST",
    "buckets:prepare_upload",
    "manage",
    {201: ("There, and for how long.",), 409: ("Beyond the tail.", "Stream-Next-Offset")},
    returns="json",
)
_BOOTSTRAP: Final = Operation(
    "GET",
    "buckets:get_bootstrap",
    "read",
    {
        200: ("Them, as parts.", *_SNAPSHOT, "Stream-Closed"),
        307: ("Where they are, for a while.", "Location", *_SNAPSHOT, "Stream-Closed"),
    },
    returns="bytes",
)

PLAIN: Final = (
    Endpoint(STREAM_ROOTS[0] + "{path}", "streams", _stream, _STREAM),
    Endpoint(STREAM_ROOTS[1] + "{path}", "streams", _stream, _STREAM, "ByAlias"),
)
IN_BUCKET: Final = {
    Resource.BUCKET: Endpoint("/{bucket}", "buckets", _bucket, _BUCKET),
    Resource.LISTING: Endpoint("/{bucket}/streams", "buckets", _streams_of_bucket, (_LISTING,)),
    Resource.STREAM: Endpoint("/{bucket}/{stream}", "buckets", _stream, _STREAM, "InBucket"),
    Resource.LATEST_SNAPSHOT: Endpoint("/{bucket}/{stream}/snapshot", "buckets", _below_stream, (_LATEST,)),
    Resource.SNAPSHOT: Endpoint("/{bucket}/{stream}/snapshot/{at}", "buckets", _below_stream, _ONE_SNAPSHOT),
    Resource.UPLOAD: Endpoint(
        "/{bucket}/{stream}/snapshot/{at}/upload", "buckets", _below_stream, (_UPLOAD,)
    ),
    Resource.BOOTSTRAP: Endpoint("/{bucket}/{stream}/bootstrap", "buckets", _below_stream, (_BOOTSTRAP,)),
}


def _page(path: str, tag: str, handler: str, returns: str = "json") -> Endpoint:
    """For everybody."""
    return Endpoint(path, tag, None, (Operation("GET", handler, "", returns=returns),))


def _asked(
    path: str, demand: Demand, handler: str, model: str, *takes: str, **more: tuple[str, ...]
) -> Endpoint:
    """An endpoint of the catalog. `more` are its own answers, as `_304`."""
    answers = {200: ("It.",)} | {int(status[1:]): meaning for status, meaning in more.items()}
    returns = f"http.catalog:{model}"
    operation = Operation("GET", f"catalog:{handler}", "read", answers, takes, returns=returns)
    return Endpoint(path, "catalog", demand, (operation,))


_FAVICON: Final = Operation("GET", "routes:favicon", "", {204: ("None.",)})
_NOT_MODIFIED: Final = ("As the entity tag in `If-None-Match` says.", "ETag")
_OF_PROCESS: Final = (
    Operation("GET", "metrics:metrics", "read"),
    Operation("GET", "metrics:traffic", "read"),
)
#: `/`, and below `/v1`: by their whole path.
FIXED: Final = {
    endpoint.path: endpoint
    for endpoint in (
        _page("/", "server", "routes:front_page"),
        Endpoint("/favicon.ico", "server", None, (_FAVICON,)),
        _page("/v1/health", "server", "routes:health"),
        _page("/v1/openapi.json", "server", "routes:openapi_document"),
        Endpoint("/v1/metrics", "", _server, _OF_PROCESS[:1]),
        Endpoint("/v1/traffic", "", _server, _OF_PROCESS[1:]),
        _page("/v1/console", "console", "console:console", "bytes"),
        _page("/v1/docs", "console", "console:docs", "bytes"),
        _asked("/v1/streams", _plain_streams, "plain_streams", "StreamListingModel", *_PAGE),
        _asked("/v1/buckets", _all_buckets, "all_buckets", "BucketListingModel", *_PAGE),
        _asked("/v1/stats", _named_stream, "stream_stats", "Stats", "of"),
        _asked("/v1/forks", _named_stream, "stream_forks", "ForksModel", "of"),
        _asked("/v1/start", _named_stream, "start_point", "StartPointModel", "of", "last", "from"),
        _asked(
            "/v1/times",
            _named_stream,
            "append_times",
            "TimesModel",
            "of",
            "page",
            "If-None-Match",
            _304=_NOT_MODIFIED,
        ),
        _asked("/v1/me", _nothing, "me", "Me"),
    )
}
CONSOLE_FILE: Final = _page("/v1/console/{file}", "console", "console:console_file", "bytes")


def _below(path: str, *operations: Operation, demand: Demand = _subscription) -> Endpoint:
    return Endpoint(f"{STREAM_ROOT}{RESERVED_SEGMENT}/{path}", "subscriptions", demand, operations)


def _subscribed(
    method: str,
    handler: str,
    rights: str,
    answers: Answers,
    returns: str = "",
    *,
    body: str = "",
    takes: str = "",
) -> Operation:
    model = returns if ":" in returns or not returns else f"http.subscription_bodies:{returns}"
    return Operation(
        method,
        f"subscriptions:{handler}",
        rights,
        answers,
        tuple(takes.split()),
        body and f"http.subscription_bodies:{body}",
        model,
    )


_MADE: Final[Answers] = {201: ("Made.",), 200: ("There already, the same.",)}
_IT: Final[Answers] = {200: ("It.",)}
_ACCEPTED: Final[Answers] = {200: ("Accepted.",)}
_DESCRIBED: Final = "SubscriptionDescription"
#: Below `/v1/stream/__ds/` (§6, §7). Callbacks, acks and releases carry the token of their wake.
SUBSCRIPTIONS: Final = (
    _below(
        "subscriptions",
        _subscribed(
            "GET", "list_subscriptions", "write manage", _IT, "SubscriptionPage", takes="prefix after limit"
        ),
        demand=_all_subscriptions,
    ),
    _below(
        "subscriptions/{id}",
        _subscribed("PUT", "create_subscription", "manage", _MADE, _DESCRIBED, body="CreateSubscription"),
        _subscribed("GET", "describe_subscription", "write manage", _IT, _DESCRIBED, takes="after"),
        _subscribed("DELETE", "delete_subscription", "manage", _GONE),
    ),
    _below(
        "subscriptions/{id}/streams", _subscribed("POST", "name_streams", "manage", _DONE, body="NameStreams")
    ),
    _below("subscriptions/{id}/streams/{path}", _subscribed("DELETE", "unname_stream", "manage", _DONE)),
    _below(
        "subscriptions/{id}/wake",
        _subscribed("POST", "wake_subscription", "manage", {202: ("A wake begins.",)}, "WakeDescription"),
    ),
    _below(
        "subscriptions/{id}/callback",
        _subscribed("POST", "callback", "", _ACCEPTED, "WakeAnswered", body="AnswerWake"),
    ),
    _below(
        "subscriptions/{id}/claim",
        _subscribed("POST", "claim_wake", "write manage", _IT, "ClaimDescription", body="ClaimWake"),
    ),
    _below(
        "subscriptions/{id}/ack",
        _subscribed("POST", "ack_wake", "", _ACCEPTED, "WakeAnswered", body="AnswerWake"),
    ),
    _below("subscriptions/{id}/release", _subscribed("POST", "release_wake", "", _DONE, body="AnswerWake")),
    _below("jwks.json", _subscribed("GET", "webhook_keys", "", _IT, "delivery.signing_keys:KeySet")),
)
ENDPOINTS: Final = (*FIXED.values(), CONSOLE_FILE, *PLAIN, *IN_BUCKET.values(), *SUBSCRIPTIONS)
