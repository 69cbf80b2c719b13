"""The errors of the client. A ValueError or TypeError means that an argument is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from tidemark.protocol.errors import PicklableError

__all__ = (
    "AnswerCut",
    "ETagMismatch",
    "InvalidRequest",
    "MalformedReply",
    "NotAllowed",
    "NotFound",
    "OutOfOrderSequence",
    "ProducerFenced",
    "SequenceConflict",
    "StatusError",
    "StreamClosed",
    "StreamConflict",
    "StreamError",
    "StreamGone",
    "StreamReplaced",
    "TooManyRequests",
    "Unavailable",
    "UnconfirmedWrite",
    "Unreachable",
)


class StreamError(PicklableError):
    """Base of all errors that a server or the network causes."""


class StatusError(StreamError):
    """An error answer, with the server's `status`, `headers` and `body`."""

    def __init__(self, what: str, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        reason = _reason(body) or _WITHOUT_WORDS.get(status, "")
        if 300 <= status < 400 and "location" in headers:
            reason = f"use {headers['location'].partition('?')[0]}, where it is"
        super().__init__(f"{what}: {status}{f': {reason}' if reason else ''}")
        self.status: Final = status
        self.headers: Final = headers
        self.body: Final = body


#: Reasons for answers to HEAD, which have no body.
_WITHOUT_WORDS: Final[Mapping[int, str]] = {
    400: "the request is malformed; a '/' at the end of the URL is a common reason",
    401: "the server asks for a token, and got none or refuses it",
    403: "the token has no right to this",
    404: "there is no such stream, or none that the token may read",
    410: "the stream is deleted, or what was asked for is no longer retained",
}


class InvalidRequest(StatusError):
    """400: a malformed offset, invalid JSON, …"""


class NotAllowed(StatusError):
    """401, 403: the token is missing or has no right."""


class ProducerFenced(NotAllowed):
    """Another producer of this id has claimed a later epoch."""


class NotFound(StatusError):
    """404"""


class StreamConflict(StatusError):
    """409: the stream exists with another configuration, the content type differs, …"""


class StreamClosed(StreamConflict):
    """Nothing can be appended any more."""


class SequenceConflict(StreamConflict):
    """`Stream-Seq` is not above the last one."""


class OutOfOrderSequence(StreamConflict):
    """The server has not seen an earlier batch of this producer."""


class StreamGone(StatusError):
    """410: the stream is deleted while forks use it, or the offset is no longer retained."""


class ETagMismatch(StatusError):
    """412: `If-Match` names another tail."""


class TooManyRequests(StatusError):
    """429, after all retries."""


class Unavailable(StatusError):
    """5xx, after all retries."""


class StreamReplaced(StreamError):
    """The stream was deleted and created again since the last read."""


class AnswerCut(StreamError):
    """The answer of a model that the server calls (durable proxy) ended early."""


class Unreachable(StreamError):
    """No whole answer, after all retries. `__cause__` is the error of httpx."""

    #: Whether the answer timed out.
    is_late = False


class UnconfirmedWrite(Unreachable):
    """No whole answer to a write: the server may have written the data."""


class MalformedReply(StreamError):
    """The answer is not one of the protocol: invalid JSON, no offset, a broken event."""


_OF_STATUS: Final[Mapping[int, type[StatusError]]] = {
    400: InvalidRequest,
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: StreamConflict,
    410: StreamGone,
    412: ETagMismatch,
    429: TooManyRequests,
}


def refusal(
    what: str, status: int, headers: Mapping[str, str], body: bytes, sent: Mapping[str, str]
) -> StatusError:
    """Return the exception for an answer; `sent` holds the request's headers."""
    kind = _OF_STATUS.get(status, Unavailable if status >= 500 else StatusError)
    if status == 403 and "producer-epoch" in headers:
        kind = ProducerFenced
    if status == 409:
        if is_true(headers, "stream-closed"):
            kind = StreamClosed
        elif "producer-expected-seq" in headers:
            kind = OutOfOrderSequence
        elif "Stream-Seq" in sent:
            kind = SequenceConflict
    return kind(what, status, headers, body)


def is_true(headers: Mapping[str, str], name: str) -> bool:
    """Whether the header is `true`, in upper or lower case. Other values count as absent (section 4.1)."""
    return headers.get(name, "").lower() == "true"


def forget_frames(error: BaseException | None, outer: BaseException | None = None) -> None:
    """Remove the frames, which would keep a request's body in memory, of an error and of those behind it, up
    to `outer`."""
    while error is not None and error is not outer:
        error.__traceback__, error = None, error.__cause__ or error.__context__


def _reason(body: bytes) -> str:
    """Return the server's reason: the `error` or `message` of a JSON object, else the start of the body."""
    try:
        parsed = json.loads(body)
        error = parsed.get("error") or parsed["message"]
        # Errors of subscriptions have a code (section 6).
        return f"{error['code']}: {error['message']}" if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, AttributeError, RecursionError):
        return body[:200].decode(errors="replace").strip()
