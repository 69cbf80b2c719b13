"""Wake tokens (§12.9): they prove that a callback, an ack or a release comes from whom the wake was given to.

Each subscription signs with a secret of its own, which lies in its item and in no answer. So no key has to be
handed to every function, and the end of a subscription ends all of its tokens.
"""

from __future__ import annotations

from typing import Final

import jwt

from tidemark.protocol.errors import WakeTokenInvalid
from tidemark.subscriptions.records import SubscriptionRecord

#: A worker that extends its lease for longer than this gets a new wake.
LIFETIME_SECONDS: Final = 24 * 60 * 60
_ALGORITHM: Final = "HS256"


def make_token(record: SubscriptionRecord, now_ms: int) -> str:
    """For the wake that is in flight."""
    claims = {
        "sub": record.subscription_id,
        "gen": record.wake.generation,
        "exp": now_ms // 1000 + LIFETIME_SECONDS,
    }
    return jwt.encode(claims, record.secret, _ALGORITHM)


def token_generation(record: SubscriptionRecord, token: str | None, now_ms: int) -> int:
    """The generation that the token is of. Raises WakeTokenInvalid."""
    if token is None:
        raise WakeTokenInvalid("Authorization must be: Bearer <the wake's token>")
    try:
        claims = jwt.decode(
            token,
            record.secret,
            algorithms=[_ALGORITHM],
            # The time is an argument, so that tests can set it.
            options={"verify_exp": False, "require": ["exp", "sub", "gen"]},
        )
    except (jwt.PyJWTError, ValueError):
        raise WakeTokenInvalid("The token is not one of this subscription") from None
    if claims["sub"] != record.subscription_id or type(claims["gen"]) is not int:
        raise WakeTokenInvalid("The token is not one of this subscription")
    if type(claims["exp"]) is not int or claims["exp"] * 1000 < now_ms:
        raise WakeTokenInvalid("The token has expired", expired=True)
    return int(claims["gen"])
