"""What the OpenAPI document says of an operation beside its parameters and its body's model."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field


class SubscriptionFault(BaseModel):
    """Some codes come with more, such as `current_holder` (§6, §7)."""

    model_config = ConfigDict(extra="allow")

    code: Annotated[str, Field(examples=["INVALID_REQUEST"])]
    message: str


class SubscriptionRefusal(BaseModel):
    """What is wrong with a token, or with storage, is said in words alone, as everywhere."""

    error: SubscriptionFault | str


_FAULTS: Final = {
    400: "The request is wrong.",
    401: "A token is needed, or it is not valid: the service's own, or that of the wake.",
    403: "The token does not grant this.",
    404: "There is no such subscription, or the token has no right to it.",
    409: "There with another configuration; the wake is over, or another worker's; or nothing is pending.",
    413: "The body is too large.",
    415: "The body has a Content-Encoding.",
    429: "Too many requests.",
    500: "An error of the server.",
    503: "Storage does not answer.",
}


def described(
    operation_id: str, summary: str, rights: str, answers: dict[int, str], body: Any = None
) -> dict[str, Any]:
    """Keyword arguments of a route. `rights` are what the service's token needs, one of these words; empty
    where a wake's own token is asked for, or none. `answers` are those of success, the usual one first, and
    `body` is the type of theirs."""
    responses: dict[int | str, dict[str, Any]] = {
        status: {"model": SubscriptionRefusal, "description": meaning} for status, meaning in _FAULTS.items()
    }
    for status, meaning in answers.items():
        responses[status] = {"description": meaning} | ({} if body is None else {"model": body})
    needed: list[dict[str, list[str]]] = [{"bearer": [right]} for right in rights.split()]
    return {
        "operation_id": operation_id,
        "summary": summary,
        "status_code": next(iter(answers)),
        "responses": responses,
        "openapi_extra": {"security": [*(needed or [{"bearer": []}]), {}]},
    }
