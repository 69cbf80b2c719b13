"""Every way the protocol says no.

Each error states a fact about the request or the stream. It carries the status the
protocol names for that fact and the headers that go with it; the HTTP layer decides how
to write it down.

    ProtocolError
    ├── Malformed             400  the request itself is wrong
    ├── ProducerFenced        403  a newer epoch of this producer exists (§5.2.1)
    ├── StreamNotFound        404
    │   └── SourceNotFound         Stream-Forked-From names no stream (§4.2)
    ├── BucketNotFound        404
    ├── SnapshotNotFound      404
    ├── RouteNotFound         404  no resource has this path
    ├── Conflict              409
    │   ├── StreamClosed           no append after closing (§4.1)
    │   ├── ContentTypeMismatch    (§5.2)
    │   ├── SequenceRegression     Stream-Seq did not increase (§5.2)
    │   ├── SequenceGap            Producer-Seq skipped ahead (§5.2.1)
    │   ├── BucketExists           (extensions §1.2)
    │   ├── BucketNotEmpty         (extensions §1.5)
    │   ├── OffsetBeyondTail       a snapshot of what is not written yet (extensions §2.2)
    │   ├── SnapshotNeeded         the latest one is what bootstrap begins with (extensions §2.6)
    │   └── UploadNotFound         named by a publish, and not there
    ├── StreamGone            410  deleted, but forks still live on its data (§4.2)
    ├── RetentionGone         410  the offset lies below what is retained (extensions §2.2)
    ├── PreconditionFailed    412  If-Match names another tail
    ├── PayloadTooLarge       413
    ├── TooManyMessages       413
    ├── UnsupportedEncoding   415  the body has a Content-Encoding
    ├── Busy                  429  storage asks us to slow down
    ├── OutcomeUnknown        503  storage did not answer: a write may have landed
    ├── StorageUnavailable    503  storage cannot be asked
    ├── Damaged               503  stored bytes are not as many as the log says
    └── StorageSilent         503  storage is known not to answer, and was not asked
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemark.protocol.offset import render_offset


class ProtocolError(Exception):
    """A request that cannot be carried out; nothing has changed."""

    status = 400

    def __init__(self, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.headers = dict(headers or {})


class Malformed(ProtocolError):
    """The request breaks a format rule, whatever the state of the stream."""


class StreamNotFound(ProtocolError):
    """There is no such stream: never created, deleted, or expired."""

    status = 404

    def __init__(self, message: str = "Stream does not exist; create it with PUT") -> None:
        super().__init__(message)


class SourceNotFound(StreamNotFound):
    """There is nothing to fork (§4.2)."""

    def __init__(self) -> None:
        super().__init__("The source stream does not exist; Stream-Forked-From must name one")


class BucketNotFound(ProtocolError):
    status = 404

    def __init__(self) -> None:
        super().__init__("Bucket does not exist; create it with PUT")


class SnapshotNotFound(ProtocolError):
    """Never published, or superseded by a later one."""

    status = 404

    def __init__(self) -> None:
        super().__init__("The stream has no such snapshot")


class RouteNotFound(ProtocolError):
    """No resource has this path, whatever the method."""

    status = 404

    def __init__(self) -> None:
        super().__init__("Nothing is here; a stream has snapshot, snapshot/{offset}[/upload] and bootstrap")


class StreamGone(ProtocolError):
    """Soft-deleted: the name is not free again before its last fork is gone (§4.2)."""

    status = 410

    def __init__(self) -> None:
        super().__init__("Stream was deleted; its data is kept for the forks made of it")


class Conflict(ProtocolError):
    """The request is well formed but contradicts the state of the stream."""

    status = 409


class StreamClosed(Conflict):
    """The final offset travels along, so that a client knows where the end is (§5.2)."""

    def __init__(self, tail: int) -> None:
        super().__init__(
            "Stream is closed and takes no more appends",
            {"Stream-Closed": "true", "Stream-Next-Offset": render_offset(tail)},
        )


class ContentTypeMismatch(Conflict):
    def __init__(self, expected: str, received: str) -> None:
        hint = ""
        if received == "application/x-www-form-urlencoded":
            hint = (
                f"; add the header Content-Type: {expected} (curl -d sends a form's type unless it is told)"
            )
        super().__init__(f"Content type mismatch: expected {expected}, got {received}{hint}")


class SequenceRegression(Conflict):
    """The PHP, TypeScript and Elixir clients look for "Sequence conflict" at the beginning."""

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
    def __init__(self) -> None:
        super().__init__("Bucket exists already")


class BucketNotEmpty(Conflict):
    def __init__(self) -> None:
        super().__init__("Bucket is not empty: delete its streams first")


class OffsetBeyondTail(Conflict):
    """The tail travels along, so that a client knows what it may fold."""

    def __init__(self, tail: int) -> None:
        super().__init__(
            f"Snapshot offset lies beyond the tail {render_offset(tail)}",
            {"Stream-Next-Offset": render_offset(tail)},
        )


class SnapshotNeeded(Conflict):
    def __init__(self) -> None:
        super().__init__("This is the latest snapshot: without it bootstrap would be incomplete")


class UploadNotFound(Conflict):
    def __init__(self) -> None:
        super().__init__(
            "No such upload is there for this offset: it is not finished, published already, or lapsed"
        )


class RetentionGone(ProtocolError):
    """Where to go on travels along; what lies before is in the snapshot."""

    status = 410

    def __init__(self, retained: int) -> None:
        super().__init__(
            f"Offsets below {render_offset(retained)} are no longer retained; start over from bootstrap",
            {"Stream-Next-Offset": render_offset(retained)},
        )


class ProducerFenced(ProtocolError):
    """Zombie fencing; the current epoch lets the client claim the next one (§5.2.1)."""

    status = 403

    def __init__(self, current_epoch: int) -> None:
        super().__init__(
            f"Producer-Epoch is stale: the current epoch is {current_epoch}",
            {"Producer-Epoch": str(current_epoch)},
        )


class PreconditionFailed(ProtocolError):
    """`If-Match` names another tail; the one that there is travels along."""

    status = 412

    def __init__(self, etag: str, tail: int) -> None:
        super().__init__(
            f"If-Match does not name the stream's tail, which is {etag}; nothing was appended",
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
    """Reads have no way to label encoded bytes, so none are stored."""

    status = 415

    def __init__(self, coding: str) -> None:
        super().__init__(
            f"Content-Encoding {coding[:80]!r} is not supported; send the body without an encoding",
            {"Accept-Encoding": "identity"},
        )


class Busy(ProtocolError):
    """Storage throttles, or too many writers race for one stream: try again later."""

    status = 429

    def __init__(self, retry_after_seconds: int = 1) -> None:
        super().__init__(
            "Too many requests for this stream right now; try again",
            {"Retry-After": str(retry_after_seconds)},
        )


class OutcomeUnknown(ProtocolError):
    """Storage did not answer, even when asked again: a write may or may not have landed.

    Repeated with the same producer headers it lands once (§5.2.1).
    """

    status = 503

    def __init__(self) -> None:
        super().__init__(
            "Storage did not answer, so the outcome is unknown; repeat the request, "
            "with producer headers if it must land exactly once",
            {"Retry-After": "1"},
        )


class StorageUnavailable(ProtocolError):
    """What the request needs of storage is not there, closed to us, or silent, and nothing
    was written without it: an append needs its large body first."""

    status = 503

    def __init__(self) -> None:
        super().__init__("Storage is out of reach, and nothing has changed; try again", {"Retry-After": "5"})


class Damaged(ProtocolError):
    """What is stored is not as long as the log says. Which batch or object it is stands in the log
    of the process; a reader gets nothing rather than a gap."""

    status = 503

    def __init__(self) -> None:
        super().__init__(
            "Stored data is damaged, so nothing of it is handed out; the operator's log says where",
            {"Retry-After": "5"},
        )


class StorageSilent(ProtocolError):
    """Storage is known not to answer, so this request was not sent to it (`aws/breaker.py`)."""

    status = 503

    def __init__(self, retry_after_seconds: int = 1) -> None:
        super().__init__(
            f"Storage does not answer; nothing was written; try again in {retry_after_seconds} s",
            {"Retry-After": str(retry_after_seconds)},
        )
