"""Authorization: the scopes in a token, the scope that a request requires, and the decision.

A token's `scope` claim (RFC 8693 §4.2) lists its grants, each as `<right>:<where>`:

    read:agents             the bucket and every stream in it
    write:agents/user-1/*   the streams whose name begins with "user-1/"
    manage:v1/chat/42       one stream of the plain surface, whose bucket is `v1`
    read:*                  everything
    fork:news               forking the streams of a bucket that the token may only read
    proxy:openai            calling the upstream of that name by the durable proxy

No right includes another one: a writer needs a separate grant to read. Words of another form belong to other
services and grant nothing here. Characters that OAuth does not allow in a scope (spaces, quotes, non-ASCII)
are percent-encoded, and so is a `*` in a name.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Final
from urllib.parse import quote, unquote

from tidemark.protocol.errors import Forbidden, StreamNotFound
from tidemark.protocol.stream_key import StreamKey

#: Further grants of a token are ignored, because each request checks all of them.
MAX_GRANTS: Final = 256
_EVERYWHERE: Final = "*"


class Right(Enum):
    READ = "read"
    WRITE = "write"
    MANAGE = "manage"
    #: Forking a stream that the client may only read. A fork keeps the name and data of its source in use.
    FORK = "fork"
    #: Calling upstreams by the durable proxy; the bucket is the name of an entry of the allow-list.
    PROXY = "proxy"


@dataclass(frozen=True, slots=True)
class Target:
    """A stream; without a name, a whole bucket; without a bucket, the whole server."""

    bucket: str | None
    stream_id: str | None = None
    #: Whether the target is all streams whose name begins with `stream_id`, as in a listing.
    is_prefix: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """A right to the streams of `bucket` whose name begins with `prefix`, or equals it."""

    right: Right
    bucket: str
    prefix: str = ""
    exact: bool = False

    def covers(self, target: Target) -> bool:
        if self.bucket not in (_EVERYWHERE, target.bucket):
            return False
        if target.stream_id is None:
            is_everywhere = self.bucket == _EVERYWHERE
            return not self.prefix and not self.exact and (target.bucket is not None or is_everywhere)
        if self.exact:
            return target.stream_id == self.prefix and not target.is_prefix
        return target.stream_id.startswith(self.prefix)


@dataclass(frozen=True, slots=True)
class RequiredScope:
    """The scope that a request requires: one of `rights` to the target. `absent` is the message of the 404
    for a client without the right to read the target."""

    target: Target
    rights: frozenset[Right]
    absent: str | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """A client's grants, their end, and its identity: the token's `sub` and `jti`, and the id of the key."""

    grants: tuple[Grant, ...] = ()
    until_ms: int | None = field(default=None, compare=False)
    subject: str | None = field(default=None, compare=False)
    token_id: str | None = field(default=None, compare=False)
    key_id: str | None = field(default=None, compare=False)

    def check(self, required: RequiredScope) -> None:
        """Raise Forbidden if the client may at least read the target, and otherwise StreamNotFound.

        The decision does not read storage, so it does not reveal whether the target exists.
        """
        rights = {grant.right for grant in self.grants if grant.covers(required.target)}
        if rights & required.rights:
            return
        if Right.READ in rights:
            raise Forbidden([right.value for right in required.rights])
        raise StreamNotFound(required.absent) if required.absent else StreamNotFound()

    def may_read(self, key: StreamKey) -> bool:
        target = Target(key.bucket, key.stream_id)
        return any(grant.right is Right.READ and grant.covers(target) for grant in self.grants)


#: The access of every client if no tokens are checked.
EVERYTHING: Final = Access(tuple(Grant(right, _EVERYWHERE) for right in Right))


def render_scopes(access: Access) -> list[str]:
    """Return the grants as words of a `scope` claim."""
    scopes = []
    for grant in access.grants:
        pattern = "" if not grant.prefix and not grant.exact else "/" + quote(grant.prefix)
        scopes.append(
            f"{grant.right.value}:{grant.bucket}{pattern}{'' if grant.exact or not pattern else '*'}"
        )
    return scopes


def grants_of_public(buckets: Collection[str]) -> tuple[Grant, ...]:
    """Return the grants of every client, with or without a token."""
    return tuple(Grant(Right.READ, bucket) for bucket in sorted(buckets))


def parse_scopes(claim: object) -> Access:
    """Return the grants in a `scope` claim: words separated by spaces, or a list of words."""
    words = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
    grants = (_parse_scope(word) for word in words[:MAX_GRANTS] if isinstance(word, str))
    return Access(tuple(grant for grant in grants if grant is not None))


def _parse_scope(word: str) -> Grant | None:
    name, colon, where = word.partition(":")
    right = _RIGHTS.get(name)
    # A bucket's id needs no encoding, so `%2A` never means everything.
    bucket, slash, pattern = where.partition("/")
    if right is None or not colon or not bucket:
        return None
    if not slash:
        return Grant(right, bucket)
    if "*" in bucket or not pattern or "*" in pattern[:-1]:
        return None
    exact = not pattern.endswith("*")
    return Grant(right, bucket, unquote(pattern if exact else pattern[:-1]), exact=exact)


_RIGHTS: Final = {right.value: right for right in Right}
