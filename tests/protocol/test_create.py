"""Idempotent creation: which configurations are the same."""

from __future__ import annotations

import pytest

from tidemark.protocol.create import StreamConfiguration, check_same_configuration
from tidemark.protocol.errors import Conflict
from tidemark.protocol.expiry import parse_expiry
from tidemark.protocol.messages import parse_content_type


def configuration(
    content_type: str = "text/plain",
    ttl: str | None = None,
    expires_at: str | None = None,
    *,
    closed: bool = False,
) -> StreamConfiguration:
    return StreamConfiguration(parse_content_type(content_type), parse_expiry(ttl, expires_at), closed)


@pytest.mark.parametrize(
    ("existing", "requested"),
    [
        (configuration(), configuration()),
        (configuration("text/plain"), configuration("TEXT/PLAIN; charset=utf-8")),
        (configuration(ttl="60"), configuration(ttl="60")),
        (
            configuration(expires_at="2030-01-01T00:00:00Z"),
            configuration(expires_at="2030-01-01T01:00:00.000+01:00"),
        ),
        (configuration(closed=True), configuration(closed=True)),
    ],
)
def test_a_put_with_the_same_configuration_is_accepted(
    existing: StreamConfiguration, requested: StreamConfiguration
) -> None:
    check_same_configuration(existing, requested)


@pytest.mark.parametrize(
    ("existing", "requested", "difference"),
    [
        (configuration(), configuration("text/html"), "content type"),
        (configuration(), configuration("application/json"), "content type"),
        (configuration(), configuration(ttl="60"), "Stream-TTL"),
        (configuration(ttl="60"), configuration(), "Stream-TTL"),
        (configuration(ttl="60"), configuration(ttl="61"), "Stream-TTL"),
        (configuration(ttl="60"), configuration(expires_at="2030-01-01T00:00:00Z"), "Stream-TTL"),
        (
            configuration(expires_at="2030-01-01T00:00:00Z"),
            configuration(expires_at="2030-01-01T00:00:00.001Z"),
            "Stream-Expires-At",
        ),
        (configuration(closed=True), configuration(), "closed"),
        (configuration(), configuration(closed=True), "open"),
    ],
)
def test_a_put_with_another_configuration_is_a_conflict_that_names_the_difference(
    existing: StreamConfiguration, requested: StreamConfiguration, difference: str
) -> None:
    """The message says what differs, or the client is left to guess."""
    with pytest.raises(Conflict, match=difference):
        check_same_configuration(existing, requested)
