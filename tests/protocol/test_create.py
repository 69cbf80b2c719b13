"""Idempotent creation: which configurations are the same."""

import pytest

from tidemark.protocol.create import StreamConfiguration, check_same_configuration
from tidemark.protocol.errors import Conflict
from tidemark.protocol.expiry import parse_expiry
from tidemark.protocol.messages import parse_content_type

AT = "2030-01-01T00:00:00Z"


def of(
    content_type: str = "text/plain", ttl: str | None = None, at: str | None = None, *, closed: bool = False
) -> StreamConfiguration:
    return StreamConfiguration(parse_content_type(content_type), parse_expiry(ttl, at), closed)


@pytest.mark.parametrize(
    ("existing", "requested", "difference"),
    [
        (of("text/plain"), of("TEXT/PLAIN; charset=utf-8"), None),
        (of(ttl="60"), of(ttl="60"), None),
        (of(at=AT), of(at="2030-01-01T01:00:00.000+01:00"), None),
        (of(closed=True), of(closed=True), None),
        (of(), of("text/html"), "content type"),
        (of(), of(ttl="60"), "Stream-TTL"),
        (of(ttl="60"), of(), "Stream-TTL"),
        (of(ttl="60"), of(ttl="61"), "Stream-TTL"),
        (of(ttl="60"), of(at=AT), "Stream-TTL"),
        (of(at=AT), of(at="2030-01-01T00:00:00.001Z"), "Stream-Expires-At"),
        (of(closed=True), of(), "closed"),
        (of(), of(closed=True), "open"),
    ],
)
def test_a_put_with_another_configuration_is_a_conflict_that_names_the_difference(
    existing: StreamConfiguration, requested: StreamConfiguration, difference: str | None
) -> None:
    if difference is None:
        check_same_configuration(existing, requested)
    else:
        with pytest.raises(Conflict, match=difference):
            check_same_configuration(existing, requested)
