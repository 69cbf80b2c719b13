"""Expiry: a sliding window that never ends early, or a fixed instant."""

import contextlib
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.protocol import expiry as rules
from tidemark.protocol.errors import Malformed

NOON_2030_MS = 1_894_708_800_000


def instant_ms(value: str) -> int | None:
    return rules.parse_expiry(None, value).expires_at_ms


# --- parsing ------------------------------------------------------------------------


def test_a_ttl_is_a_number_of_seconds_and_without_a_header_a_stream_never_expires() -> None:
    assert rules.parse_expiry(None, None) == rules.NEVER
    assert rules.parse_expiry("3600", None) == rules.Expiry(ttl_seconds=3600)


@pytest.mark.parametrize("ttl", ["", "+3600", "03600", "3600.0", "3.6e3", "-1"])
def test_a_ttl_in_any_other_form_is_malformed(ttl: str) -> None:
    with pytest.raises(Malformed, match="Stream-TTL"):
        rules.parse_expiry(ttl, None)


@pytest.mark.parametrize(("ttl", "at"), [("60", "2030-01-15T12:00:00Z"), ("", ""), ("x", "y")])
def test_ttl_and_instant_together_are_malformed(ttl: str, at: str) -> None:
    with pytest.raises(Malformed, match="not both"):
        rules.parse_expiry(ttl, at)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2030-01-15T12:00:00Z", NOON_2030_MS),
        ("2030-01-15t12:00:00z", NOON_2030_MS),
        ("2030-01-15T12:00:00.000000000Z", NOON_2030_MS),
        ("2030-01-15T12:00:00-00:00", NOON_2030_MS),
        ("2030-01-15T13:30:00+01:30", NOON_2030_MS),
        ("2030-01-15T04:00:00-08:00", NOON_2030_MS),
        ("2030-01-16T11:59:00+23:59", NOON_2030_MS),
        ("2030-01-15T12:00:00.5Z", NOON_2030_MS + 500),
        ("2030-01-15T12:00:00.1234567890Z", NOON_2030_MS + 123),
        ("2030-01-15T12:00:00.0009999999999999999999999999999Z", NOON_2030_MS),
        ("2030-01-15T12:00:00." + "0" * 43 + "Z", NOON_2030_MS),  # 64 characters
        ("2028-02-29T00:00:00Z", 1_835_395_200_000),
        ("9999-12-31T23:59:59Z", 253_402_300_799_000),
        # Leap seconds (RFC 3339 §5.7) are the second after them, as in POSIX time.
        ("2016-12-31T23:59:60Z", 1_483_228_800_000),
        ("2016-12-31T23:59:60.5Z", 1_483_228_800_500),
        ("1990-12-31T15:59:60-08:00", 662_688_000_000),
        ("2015-06-30T23:59:60Z", 1_435_708_800_000),
    ],
)
def test_an_instant_is_parsed_to_its_millisecond_however_it_is_written(value: str, expected: int) -> None:
    expiry = rules.parse_expiry(None, value)
    assert (expiry.expires_at_ms, expiry.expires_at) == (expected, value), "HEAD has the client's own words"


@given(st.integers(min_value=0, max_value=253_402_300_799_999))
def test_no_millisecond_is_lost_in_parsing(ms: int) -> None:
    """A float in between would lose one here and there, and a stream would end early."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    assert instant_ms(moment.isoformat(timespec="milliseconds")) == ms


NOT_AN_INSTANT = (
    "", "never", "1894708800", "2030-01-15", "2030-01-15T12:00Z",
    "2030-01-15T12:00:00",  # no zone: whose noon?
    "2030-01-15 12:00:00Z", "2030-01-15T12:00:00 Z", " 2030-01-15T12:00:00Z", "2030-01-15T12:00:00Z\n",
    "2030-1-15T12:00:00Z", "30-01-15T12:00:00Z", "+2030-01-15T12:00:00Z", "12030-01-15T12:00:00Z",
    "0000-01-15T12:00:00Z", "2030-00-15T12:00:00Z", "2030-13-15T12:00:00Z", "2030-01-00T12:00:00Z",
    "2030-02-30T12:00:00Z", "2029-02-29T12:00:00Z", "2030-01-15T24:00:00Z", "2030-01-15T12:60:00Z",
    "2030-01-15T12:00:60Z",  # no leap second is announced there
    "2030-01-15T12:00:61Z", "2030-01-15T23:59:60Z", "2016-12-31T23:59:60+01:00", "2016-12-31T23:59:61Z",
    "9999-12-31T23:59:60Z",
    "2030-01-15T12:00:00." + "0" * 45 + "Z",  # longer than what is stored
    "2030-01-15T12:00:00.Z", "2030-01-15T12:00:00,5Z", "2030-01-15T12:00:00.5", "2030-01-15T12:00:00+01",
    "2030-01-15T12:00:00+0100", "2030-01-15T12:00:00+24:00", "2030-01-15T12:00:00+01:60",
    "2030-01-15T12:00:00+01:00:00", "2030-01-15T12:00:00ZZ", "2030-W03-2T12:00:00Z", "20300115T120000Z",
    "٢٠٣٠-٠١-١٥T١٢:٠٠:٠٠Z", "2030-01-15T12:00:00Z, 2030-01-15T12:00:00Z", "Tue, 15 Jan 2030 12:00:00 GMT",
)  # fmt: skip
DIGITS = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([+-][0-9]{2}:[0-9]{2}|Z)"


@pytest.mark.parametrize("value", NOT_AN_INSTANT)
def test_a_value_that_is_no_rfc3339_timestamp_is_malformed(value: str) -> None:
    with pytest.raises(Malformed, match="Stream-Expires-At"):
        rules.parse_expiry(None, value)


@given(st.text(max_size=40) | st.from_regex(DIGITS, fullmatch=True))
def test_any_text_is_an_instant_or_malformed(value: str) -> None:
    with contextlib.suppress(Malformed):
        assert isinstance(instant_ms(value), int)


# --- deadlines ----------------------------------------------------------------------


def test_a_fixed_instant_is_exact_and_no_touch_moves_it() -> None:
    expiry = rules.parse_expiry(None, "2030-01-15T12:00:00Z")
    for touched_ms in (0, NOON_2030_MS - 1):
        assert not rules.is_expired(expiry, touched_ms, NOON_2030_MS - 1)
        assert rules.is_expired(expiry, touched_ms, NOON_2030_MS)
        assert not rules.needs_renewal(expiry, touched_ms, NOON_2030_MS - 1)
    assert rules.deadline_ms(rules.NEVER, 0) is None
    assert not rules.is_expired(rules.NEVER, 0, 10**18)
    assert not rules.needs_renewal(rules.NEVER, 0, 10**18)
    assert rules.is_expired(rules.Expiry(ttl_seconds=0), 1000, 1000), "at once"


#: Shares of the window, many of them where something changes.
shares = st.sampled_from(
    [0, 0.049, 0.05, 0.051, 0.5, 0.949, 0.95, 0.951, 0.999, 1, 1.001, 1.049, 1.05, 1.051]
)


@settings(max_examples=5 * settings().max_examples // 2)
@given(
    st.just(1000) | st.integers(0, 10**7),
    st.lists(st.tuples(st.booleans(), shares | st.floats(0, 1.2)), max_size=20),
)
def test_a_window_ends_never_early_nor_five_percent_late(ttl: int, gaps: list[tuple[bool, float]]) -> None:
    """However reads and looks (HEAD) follow each other: the window counts from the last
    read, although most reads are not recorded."""
    expiry, window_ms = rules.Expiry(ttl_seconds=ttl), ttl * 1000
    now = recorded = last_read = 1_800_000_000_000
    for is_read, share in gaps:
        now += int(share * window_ms)
        idle = now - last_read
        if rules.is_expired(expiry, recorded, now):
            assert idle >= window_ms
            return
        assert idle < window_ms * (1 + 1 / rules.RENEWALS_PER_WINDOW)
        if is_read:
            last_read = now
            recorded = now if rules.needs_renewal(expiry, recorded, now) else recorded


@given(
    st.integers(min_value=1, max_value=10**7),
    st.lists(st.floats(min_value=0, max_value=0.5), min_size=1, max_size=200),
)
def test_a_busy_reader_records_at_most_twenty_renewals_per_window(ttl: int, gaps: list[float]) -> None:
    expiry, window_ms = rules.Expiry(ttl_seconds=ttl), ttl * 1000
    start = now = recorded = 0
    renewals = 0
    for share in gaps:
        now += int(share * window_ms)
        if rules.needs_renewal(expiry, recorded, now):
            recorded, renewals = now, renewals + 1
    assert renewals <= (now - start) * rules.RENEWALS_PER_WINDOW / window_ms
