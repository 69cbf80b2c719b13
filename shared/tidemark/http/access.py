"""What a request may do, handed from the check in front to the routes that say it (`/v1/me`)."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

from tidemark.protocol.authorization import EVERYTHING, Access

_ACCESS: Final = "tidemark.access"


def hand_on_access(scope: MutableMapping[str, Any], access: Access, *, has_token: bool) -> None:
    scope[_ACCESS] = (access, has_token)


def access_of(scope: MutableMapping[str, Any]) -> tuple[Access, bool]:
    """And whether the request had a token. Where nothing is checked, everybody may do everything."""
    found: tuple[Access, bool] = scope.get(_ACCESS, (EVERYTHING, False))
    return found
