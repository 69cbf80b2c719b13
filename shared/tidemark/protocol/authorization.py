"""Who may do what: scopes in a token, what a request asks for, and the decision.

A token's `scope` claim (RFC 8693 §4.2) lists what it grants, each as `<right>:<where>`:

    read:agents             the bucket and every stream in it
    write:agents/user-1/*   the streams whose name begins with "user-1/"
    manage:v1/chat/42       one stream of the plain surface, whose bucket is `v1`
    read:*                  everything

Rights do not imply each other: one that only writes is a letter box. Words in the claim
that are not of this form belong to other services and grant nothing here. What OAuth keeps
out of a scope (spaces, quotes, non-ASCII) is percent-encoded, and so is a `*` that is part
of a name.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final
from urllib.parse import unquote

from tidemark.protocol.errors import Forbidden, StreamNotFound

#: Nobody gets by with more grants than this: each is looked at for every request.
MAX_GRANTS: Final = 256
_EVERYWHERE: Final = "*"


class Right(Enum):
    READ = "read"
    WRITE = "write"
    MANAGE = "manage"


@dataclass(frozen=True, slots=True)
class Target:
    """A stream, or, without a name, a whole bucket; without a bucket, the whole server."""

    bucket: str | None
    stream_id: str | None = None
    #: All streams whose name begins like this, as a listing shows them.
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
            return not self.prefix and not self.exact and (target.bucket is not None or self.is_everywhere)
        if self.exact:
            return target.stream_id == self.prefix and not target.is_prefix
        return target.stream_id.startswith(self.prefix)

    @property
    def is_everywhere(self) -> bool:
        return self.bucket == _EVERYWHERE


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request needs: one of the rights to the target. `absent` is how it is said
    that there is no such thing."""

    target: Target
    rights: frozenset[Right]
    absent: str | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """What somebody may do."""

    grants: tuple[Grant, ...] = ()

    def check(self, demand: Demand) -> None:
        """Raises Forbidden where the target may at least be read, and else StreamNotFound:
        decided without a look at storage, so that it tells nothing of what is there."""
        rights = {grant.right for grant in self.grants if grant.covers(demand.target)}
        if rights & demand.rights:
            return
        if Right.READ in rights:
            raise Forbidden([right.value for right in demand.rights])
        raise StreamNotFound(demand.absent) if demand.absent else StreamNotFound()


def grants_of_public(buckets: Collection[str]) -> tuple[Grant, ...]:
    """What everybody may do, with a token or without."""
    return tuple(Grant(Right.READ, bucket) for bucket in sorted(buckets))


def parse_scopes(claim: object) -> Access:
    """The grants in a `scope` claim: words with spaces between, or a list of words."""
    words = claim.split() if isinstance(claim, str) else claim if isinstance(claim, list) else []
    grants = (_parse_scope(word) for word in words[:MAX_GRANTS] if isinstance(word, str))
    return Access(tuple(grant for grant in grants if grant is not None))


def _parse_scope(word: str) -> Grant | None:
    name, colon, where = word.partition(":")
    right = _RIGHTS.get(name)
    # A bucket's id needs no encoding, so `%2A` is never everywhere.
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
