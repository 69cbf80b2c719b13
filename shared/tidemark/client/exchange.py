"""One request and its retries, without I/O or a clock.

An operation is a generator. The generator yields an effect (send a request, wait, receive more of the open
event stream), and the driver sends the result back: a `Reply`, or `Lost` if no whole reply came.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from math import inf
from typing import Any, Final, TypeAlias, TypeVar

from tidemark.client.errors import MalformedReply, StreamError, UnconfirmedWrite, Unreachable, refusal

_T = TypeVar("_T")

#: A page of Tidemark has up to 8 MiB. Other servers answer with the whole stream.
LARGEST_REPLY_BYTES: Final = 256 * 1024 * 1024
#: Longest pause, whatever `Retry-After` a server sends: `sleep` does not accept every number.
_LONGEST_SECONDS: Final = 24 * 3600.0
_log: Final = logging.getLogger("tidemark.client")


@dataclass(frozen=True, slots=True)
class Request:
    """`streams`: the reply comes without its body, and `Receive` gets the body piece by piece. `max_bytes`
    limits the size of a body, or of an event. The driver's timeout grows by `wait_seconds`, which the server
    may wait before it answers, up to `max_seconds`. `anonymous`: without the caller's headers and
    credentials, because the URL is a permission."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str | list[str]] = field(default_factory=dict)
    body: bytes = b""
    streams: bool = False
    wait_seconds: float = 0.0
    max_seconds: float = inf
    max_bytes: int = LARGEST_REPLY_BYTES
    anonymous: bool = False

    @property
    def what(self) -> str:
        """Return the request's name in errors, without the query, which may contain a token."""
        return f"{self.method} {self.url.partition('?')[0]}"

    def check_size(self, size: int) -> None:
        """Raises MalformedReply if `size` is above `max_bytes`."""
        if size > self.max_bytes:
            raise MalformedReply(
                f"{self.what}: the answer is larger than {self.max_bytes:,} bytes, and is not read further"
            )


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class Receive:
    """Get the next bytes of the open reply; empty at its end."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until the server's socket reports that the stream may have data behind `offset`. Results in True,
    in the page behind `offset` if the message had that page, or in False if no socket works, perhaps at
    once. `insists`: use the socket even if the caller has an HTTP client of its own."""

    url: str
    offset: str
    insists: bool


Effect: TypeAlias = Request | Sleep | Receive | Wait
Steps: TypeAlias = Generator[Effect, Any, _T]


@dataclass(frozen=True, slots=True)
class Reply:
    """The names of `headers` are in lower case. `seconds` is the time from the request to the reply."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    seconds: float = 0.0

    @property
    def outcome_is_unknown(self) -> bool:
        """Whether the server does not know the result of the write (`"outcome": "unknown"`, Tidemark)."""
        try:
            body = json.loads(self.body)
        except (ValueError, RecursionError):
            return False
        return isinstance(body, dict) and body.get("outcome") == "unknown"


@dataclass(frozen=True, slots=True)
class Lost:
    """No whole reply came. `sent`: the server may have received the request. `is_late`: a timeout."""

    reason: str
    sent: bool = True
    is_late: bool = False
    seconds: float = 0.0
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """The number of retries and their back-off: `initial_delay_seconds`, then `multiplier` times as long each
    time. A server's `Retry-After` replaces the back-off. No retry begins later than `max_seconds` after the
    first try. By default a call without an answer ends after 9 tries, about 5 minutes: a try takes 30 s (the
    timeout), and the pauses 28 s in all. With `max_retries=0` it ends after 30 s."""

    max_retries: int = 8
    max_seconds: float = 300.0
    initial_delay_seconds: float = 0.1
    max_delay_seconds: float = 10.0
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        first = self.initial_delay_seconds
        for name, is_right, rule in (
            ("max_retries", self.max_retries >= 0, "0 or more"),
            ("max_seconds", self.max_seconds >= 0, "0 or more"),
            ("initial_delay_seconds", first > 0, "above 0"),
            ("max_delay_seconds", self.max_delay_seconds >= first, "at least initial_delay_seconds"),
            ("multiplier", self.multiplier >= 1, "at least 1"),
        ):
            if not is_right:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be {rule}")

    def is_over(self, failures: int, seconds: float) -> bool:
        return failures >= self.max_retries or seconds > self.max_seconds

    def delay(self, failures: int, reply: Reply | Lost) -> float:
        """Return the back-off, in seconds, after `failures` failures, with up to a quarter of jitter."""
        asked = retry_after(reply) if isinstance(reply, Reply) else None
        # The limit of the exponent prevents an overflow of the float.
        backoff = min(
            self.max_delay_seconds, self.initial_delay_seconds * self.multiplier ** min(failures, 64)
        )
        return min(_LONGEST_SECONDS, asked or backoff) * (1 + random.random() / 4)


def retry_after(reply: Reply) -> float | None:
    """Return `Retry-After` in seconds; a date counts from the server's own clock."""
    value = reply.headers.get("retry-after", "")
    try:
        if value.isdigit():
            return float(value)
        until = parsedate_to_datetime(value)
        return max(0.0, (until - parsedate_to_datetime(reply.headers.get("date", ""))).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None


def passing(reply: Reply | Lost) -> bool:
    """Whether a retry may succeed. 501 and 505 are permanent: the server does not support the request."""
    if isinstance(reply, Lost):
        return True
    return reply.status == 429 or (reply.status >= 500 and reply.status not in {501, 505})


def may_have_been_written(reply: Reply | Lost) -> bool:
    """Whether a failed write may have been committed. Only a request that was not sent, and a refusal by the
    server, exclude that: 502 and 504 come from a proxy, and a 503 of Tidemark may have an unknown outcome."""
    if isinstance(reply, Lost):
        return reply.sent
    return reply.status not in {429, 500, 503} or reply.outcome_is_unknown


def failure(request: Request, reply: Reply | Lost, tries: int = 1, seconds: float = 0.0) -> StreamError:
    """Return the error of a request after so many tries."""
    writes, why = request.method not in {"GET", "HEAD"}, StreamError()
    if isinstance(reply, Reply):
        why = refusal(request.what, reply.status, reply.headers, reply.body, request.headers)
        if writes and reply.outcome_is_unknown:
            why = UnconfirmedWrite(str(why))
    else:
        lost = Unreachable(f"{request.what}: {reply.reason}")
        if writes and reply.sent:
            lost = UnconfirmedWrite(f"{request.what} may have been carried out: {reply.reason}")
        lost.is_late, lost.__cause__ = reply.is_late, reply.error
        why = lost
    if tries > 1:
        why.add_note(f"It was tried {tries} times in {seconds:.1f} s.")
    return why


def warn_of_retry(request: Request, reply: Reply | Lost) -> None:
    """Log why the caller waits: if the server is down, all retries take half a minute."""
    _log.warning("%s; trying again", failure(request, reply))


def exchange(
    request: Request,
    retry: Retry,
    may_repeat: Callable[[Reply | Lost], bool] = passing,
    *,
    forever: bool = False,
) -> Steps[Reply]:
    """Send the request, with retries, and return the 2xx reply. Raises a failure that no retry can mend, or
    the last one."""
    failures, spent = 0, 0.0
    while True:
        reply: Reply | Lost = yield request
        if isinstance(reply, Reply) and 200 <= reply.status < 300:
            return reply
        spent += reply.seconds
        pause = retry.delay(failures, reply)
        is_over = not forever and retry.is_over(failures, spent + pause)
        if is_over or not (passing(reply) and may_repeat(reply)):
            raise failure(request, reply, failures + 1, spent)
        if not failures:
            warn_of_retry(request, reply)
        yield Sleep(pause)
        failures, spent = failures + 1, spent + pause
