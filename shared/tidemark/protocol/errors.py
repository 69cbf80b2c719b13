"""All errors that a client can get (docs/reference/errors.md).

An error states a fact about the request or the stream. It carries the status that the protocol requires and
the related headers; the HTTP layer writes the response.
"""

from __future__ import annotations

import copyreg
import math
from collections.abc import Collection, Mapping
from typing import Any, Final, Self

from tidemark.protocol.offset import render_offset

_IN_FIVE_SECONDS: Final[Mapping[str, str]] = {"Retry-After": "5"}


class PicklableError(Exception):
    """An error that pickle and copy keep as it is, for example on its way from one process to another. By
    default they would call `__init__` with the message alone."""

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class ProtocolError(PicklableError):
    """The request was not executed, and nothing has changed. A fact without values has its message in its
    class."""

    status = 400
    message = ""
    headers: Mapping[str, str] = {}
    #: More members of the body beside `error`, for programs.
    beside: Mapping[str, str] = {}

    def __init__(self, message: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        if message is not None:
            self.message = message
        if headers is not None:
            self.headers = headers
        super().__init__(self.message)

    def without_frames(self) -> Self:
        """Return the error to raise later, without its traceback, whose frames keep the body in memory."""
        self.__context__ = None
        return self.with_traceback(None)


class Malformed(ProtocolError):
    """The request breaks a format rule, whatever the state of the stream."""


class Unauthorized(ProtocolError):
    """The token is missing or invalid. `message` names the correction and never quotes the token."""

    status = 401

    def __init__(self, message: str, *, token_given: bool) -> None:
        challenge = 'Bearer realm="tidemark"'
        if token_given:
            challenge += f', error="invalid_token", error_description="{message}"'
        super().__init__(message, {"WWW-Authenticate": challenge})


class Forbidden(ProtocolError):
    """The token has none of these rights to the stream or bucket."""

    status = 403

    def __init__(self, rights: Collection[str]) -> None:
        needed = " or ".join(sorted(rights))
        super().__init__(f"The token does not allow this request, which needs the right {needed}")


class OriginAccessDenied(ProtocolError):
    status = 403
    message = "This address accepts only requests through CloudFront: use the distribution's address"


class ForeignOrigin(ProtocolError):
    """A page of another origin wrote to a server without keys."""

    status = 403

    def __init__(self, origin: str) -> None:
        super().__init__(
            f"This server has no keys, so pages of other origins may not write, got {origin[:80]!r}: "
            "list the origin in ALLOW_ANONYMOUS, as http://localhost:5173, or give the server a key"
        )


class UnknownHost(ProtocolError):
    """A server without keys was addressed by a host name that is not its own."""

    status = 421

    def __init__(self, host: str) -> None:
        super().__init__(
            f"This server has no keys, so it answers to 127.0.0.1, localhost and [::1], got {host[:80]!r}: "
            "list its origin in ALLOW_ANONYMOUS, as http://box.example:4437, or give the server a key"
        )


class StreamNotFound(ProtocolError):
    """The stream does not exist: never created, deleted, or expired."""

    status = 404
    message = "Stream does not exist; create it with PUT"


class SourceNotFound(StreamNotFound):
    """The source of the fork does not exist (§4.2)."""

    message = "The source stream does not exist; Stream-Forked-From must name one"


class BucketNotFound(ProtocolError):
    status = 404
    message = "Bucket does not exist; create it with PUT"


class SnapshotNotFound(ProtocolError):
    """The snapshot was never published, or a later one superseded it."""

    status = 404
    message = "The stream has no such snapshot; Stream-Snapshot-Offset of HEAD names the latest"


class RouteNotFound(ProtocolError):
    """The path is not a resource, whatever the method."""

    status = 404
    message = (
        "No resource has this path; below a stream there are snapshot, snapshot/{offset}, "
        "snapshot/{offset}/upload and bootstrap"
    )


class SubscriptionError(ProtocolError):
    """An error of a request about a subscription. The body is `{"error": {"code", "message", …}}`, with the
    `details` beside `code` and `message` (§6, §7)."""

    code = "INVALID_REQUEST"
    details: Mapping[str, object] = {}


class InvalidSubscription(SubscriptionError):
    """The request itself is wrong, whatever the state of the subscription."""


class WebhookUrlRejected(SubscriptionError):
    """This server does not call that URL (§12.8)."""

    code = "WEBHOOK_URL_REJECTED"


class DeliveryTokenInvalid(SubscriptionError):
    """The bearer token of a callback, an ack or a release is missing, wrong or expired (§12.9)."""

    status = 401
    code = "TOKEN_INVALID"

    def __init__(self, message: str, *, expired: bool = False) -> None:
        super().__init__(message, {"WWW-Authenticate": 'Bearer realm="tidemark"'})
        if expired:
            self.code = "TOKEN_EXPIRED"


class SubscriptionNotFound(SubscriptionError):
    status = 404
    code = "SUBSCRIPTION_NOT_FOUND"
    message = "Subscription does not exist; create it with PUT"


class SubscriptionExists(SubscriptionError):
    status = 409
    code = "SUBSCRIPTION_ALREADY_EXISTS"
    message = "Subscription exists already with another configuration"


class TooManySubscriptions(SubscriptionError):
    """A limit on the number of subscriptions. `what` describes the counted ones."""

    status = 429
    code = "TOO_MANY_SUBSCRIPTIONS"

    def __init__(self, what: str, count: int, limit: int) -> None:
        super().__init__(f"{count} subscriptions {what}, and the limit is {limit}; delete one first")
        self.details = {"limit": limit, "count": count}


class DeliveryFenced(SubscriptionError):
    """A later delivery has replaced this one, or this one was finished (§7.3)."""

    status = 409
    code = "FENCED"
    message = "This wake is over: its generation or wake_id is not the current one"


class AlreadyClaimed(SubscriptionError):
    status = 409
    code = "ALREADY_CLAIMED"

    def __init__(self, holder: str, generation: int) -> None:
        super().__init__("Another worker has claimed the subscription; try again when its lease is over")
        self.details = {"current_holder": holder, "generation": generation}


class NoPendingWork(SubscriptionError):
    status = 409
    code = "NO_PENDING_WORK"
    message = "No stream of the subscription has anything new"


class InvalidAck(SubscriptionError):
    status = 409
    code = "INVALID_OFFSET"


class ProxyError(ProtocolError):
    """An error of the proxy (§11 of its protocol). The body is `{"error": {"code", "message"}}`."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class SoftDeleted(ProtocolError):
    """The stream is deleted, and its name stays reserved until its last fork is gone (§4.2)."""

    status = 410
    message = "Stream was deleted, and forks still use its data; take another name"


class Conflict(ProtocolError):
    """The request is well formed but contradicts the state of the stream."""

    status = 409


class AppendAfterClose(Conflict):
    """The stream is closed. A header has its final offset (§5.2)."""

    def __init__(self, tail: int) -> None:
        super().__init__(
            "Stream is closed and takes no more appends",
            {"Stream-Closed": "true", "Stream-Next-Offset": render_offset(tail)},
        )


class ContentTypeMismatch(Conflict):
    def __init__(self, expected: str, received: str) -> None:
        hint = ""
        if received == "application/x-www-form-urlencoded":
            hint = f"; add the header Content-Type: {expected} (curl -d sends a form's type by default)"
        super().__init__(f"Content type mismatch: expected {expected}, got {received}{hint}")


class SequenceRegression(Conflict):
    """The PHP, TypeScript and Elixir clients look for "Sequence conflict" at the start."""

    def __init__(self, last: str, received: str) -> None:
        super().__init__(
            f"Sequence conflict: Stream-Seq must be greater than {last!r} (bytewise), got {received!r}"
        )


class SequenceGap(Conflict):
    def __init__(self, expected: int, received: int) -> None:
        super().__init__(
            f"Producer-Seq {received} leaves a gap: {expected} is next",
            {"Producer-Expected-Seq": str(expected), "Producer-Received-Seq": str(received)},
        )


class BucketExists(Conflict):
    message = "Bucket exists already"


class BucketNotEmpty(Conflict):
    message = "Bucket is not empty: delete its streams first"


class ForkBelowCompacted(Conflict):
    """The fork would lack the removed messages and also the later ones that superseded them. A header names
    the earliest offset for a fork."""

    def __init__(self, compacted: int) -> None:
        earliest = render_offset(compacted)
        super().__init__(
            f"The source is compacted up to {earliest}, the earliest Stream-Fork-Offset that can be forked",
            {"Stream-Compacted-Offset": earliest},
        )


class OffsetBeyondTail(Conflict):
    """A header with the tail names the highest offset for a snapshot."""

    def __init__(self, tail: int) -> None:
        super().__init__(
            f"Snapshot offset lies beyond the tail {render_offset(tail)}",
            {"Stream-Next-Offset": render_offset(tail)},
        )


class SnapshotNeeded(Conflict):
    message = "The latest snapshot cannot be deleted: bootstrap begins with it"


class UploadNotFound(Conflict):
    message = "There is no such upload for this offset: it is not finished, already published, or expired"


class RetentionGone(ProtocolError):
    """The offset is no longer retained. A header names the offset to continue from."""

    status = 410

    def __init__(self, retained: int) -> None:
        super().__init__(
            f"Offsets below {render_offset(retained)} are no longer retained: read on from there, or, in a "
            "bucket, start over from bootstrap",
            {"Stream-Next-Offset": render_offset(retained)},
        )


class HistoryGone(ProtocolError):
    """The offset is beyond the tail: it is invented, or from a lost history, because the stream was restored
    to an older state or re-created. A reader that waited there would continue in the middle of other bytes. A
    header names the offset to start over from."""

    status = 410

    def __init__(self, offset: int, retained: int) -> None:
        super().__init__(
            f"Offset {render_offset(offset)} lies beyond the end of the stream, which may have been put back "
            f"to an older state: start over from {render_offset(retained)} or, in a bucket, from bootstrap",
            {"Stream-Next-Offset": render_offset(retained)},
        )


class StaleCursor(ProtocolError):
    """The reader's cursor is from an earlier stream of this name, in which the offset meant other bytes. A
    header names the offset to start over from."""

    status = 410

    def __init__(self, retained: int) -> None:
        super().__init__(
            "The cursor is of a stream that was deleted and created again under this name: drop what was "
            "read of it, and read from offset -1 without the cursor, or, in a bucket, start over from "
            "bootstrap",
            {"Stream-Next-Offset": render_offset(retained)},
        )


class StaleEpoch(ProtocolError):
    """The producer was replaced (zombie fencing). A header names the current epoch (§5.2.1)."""

    status = 403

    def __init__(self, current_epoch: int) -> None:
        super().__init__(
            f"Producer-Epoch is stale: the current epoch is {current_epoch}",
            {"Producer-Epoch": str(current_epoch)},
        )


class PreconditionFailed(ProtocolError):
    """`If-Match` or `If-None-Match` fails. Clients that may read the stream get the current tail."""

    status = 412

    def __init__(self, etag: str | None = None, tail: int = 0) -> None:
        if etag is None:
            super().__init__("If-Match or If-None-Match fails; nothing was appended")
            return
        super().__init__(
            f"If-Match or If-None-Match fails: the stream's tail is {etag}; nothing was appended",
            {"ETag": etag, "Stream-Next-Offset": render_offset(tail)},
        )


class PayloadTooLarge(ProtocolError):
    status = 413

    def __init__(self, limit_bytes: int, way_out: str = "") -> None:
        super().__init__(f"Body is too large: at most {limit_bytes} bytes in one request{way_out}")


class TooManyMessages(ProtocolError):
    status = 413

    def __init__(self, limit: int) -> None:
        super().__init__(f"Too many messages: at most {limit} in one request, so send them in several")


class UnsupportedEncoding(ProtocolError):
    """The body is encoded. Reads cannot label encoded bytes, so none are stored."""

    status = 415

    def __init__(self, coding: str) -> None:
        super().__init__(
            f"Content-Encoding {coding[:80]!r} is not supported; send the body without an encoding",
            {"Accept-Encoding": "identity"},
        )


class TryAgain(ProtocolError):
    """Nothing was done, and a retry may succeed. `what` describes the cause."""

    status = 429
    what = "Too many requests"

    def __init__(self, wait_seconds: float = 1, what: str | None = None) -> None:
        retry_after = max(1, math.ceil(wait_seconds))
        super().__init__(
            f"{what or self.what}; try again in {retry_after} s", {"Retry-After": str(retry_after)}
        )


class Busy(TryAgain):
    """Storage throttles, or too many writers race for one stream."""

    what = "Too many requests for this stream"


class RateLimitExceeded(TryAgain):
    """A limit of this server: `REQUESTS_PER_SECOND`, or the limit of large bodies."""


class OutcomeUnknown(ProtocolError):
    """Storage did not answer, even after retries, so a write may or may not have succeeded. The body has the
    member `"outcome": "unknown"`.

    A repetition with the same producer headers is written once (§5.2.1).
    """

    status = 503
    message = (
        "Storage did not answer, so the outcome is unknown; repeat the request, "
        "with producer headers if it must land exactly once"
    )
    headers: Mapping[str, str] = {"Retry-After": "1"}
    beside: Mapping[str, str] = {"outcome": "unknown"}


class StorageUnavailable(ProtocolError):
    """Storage is missing, refuses access, or does not answer, and nothing was written. An append also gets
    this error if its large body cannot be stored first."""

    status = 503
    message = "Storage cannot be reached, and nothing has changed; try again"
    headers = _IN_FIVE_SECONDS


class BlobUnreadable(StorageUnavailable):
    """The blob is missing, or access is refused. A retry does not help."""


class Damaged(ProtocolError):
    """Stored bytes do not match the log. The process logs the place; a reader gets this error and no gap."""

    status = 503
    message = "Stored data is damaged and is not returned; the server's log names the place"
    headers = _IN_FIVE_SECONDS


class StorageSilent(TryAgain):
    """Storage has stopped answering, so the request was not sent there (`aws/retry.py`)."""

    status = 503
    what = "Storage does not answer; nothing was written"


class EdgeTooNew(ProtocolError):
    """The edge is from a later release, and this function might misread its headers."""

    status = 503
    message = "CloudFront's function is newer than this one; try again"
    headers = _IN_FIVE_SECONDS


class FormatTooNew(ProtocolError):
    """A later release has stored data that this one would misread."""

    status = 503

    def __init__(self, least_epoch: int, own_epoch: int) -> None:
        super().__init__(
            f"This release is too old for the stored data: it reads format {own_epoch}, and the table needs "
            f"{least_epoch}; use a later release",
            {"Retry-After": "60"},
        )


class KeysUnavailable(ProtocolError):
    """The keys or the origin secret cannot be fetched, so no request can be authorized or refused."""

    status = 503
    message = "The keys for tokens cannot be fetched right now; try again"
    headers = _IN_FIVE_SECONDS
