"""Idempotent producers: the headers, and the validation logic of §5.2.1 line by line."""

from contextlib import nullcontext

import pytest

from tidemark.protocol import producer
from tidemark.protocol.errors import Malformed, ProtocolError, SequenceGap, SequenceRegression, StaleEpoch


@pytest.mark.parametrize("value", [None, "0", "001", "a b", "~", "x" * producer.MAX_LENGTH])
def test_up_to_256_ascii_characters_are_a_stream_seq(value: str | None) -> None:
    assert producer.parse_stream_seq(value) == value


@pytest.mark.parametrize("value", ["", "x" * 257, "é", "\u2028", "１", "a,b", ","])
def test_any_other_stream_seq_is_malformed(value: str) -> None:
    """A comma is refused because gateways join repeated headers with one."""
    with pytest.raises(
        Malformed, match="Stream-Seq must be sent once" if "," in value else "Stream-Seq must be 1"
    ):
        producer.parse_stream_seq(value)


@pytest.mark.parametrize(
    ("last", "received", "is_refused"),
    [(None, "0", False), ("09", "1", False), ("1", "1", True), ("2", "10", True)],
)
def test_an_equal_or_smaller_stream_seq_is_refused(last: str, received: str, is_refused: bool) -> None:
    """Not as numbers: `10` comes before `2`. The message begins with the words that clients look for."""
    with pytest.raises(SequenceRegression, match=r"^Sequence conflict") if is_refused else nullcontext():
        producer.check_stream_seq(last, received)


# --- headers ------------------------------------------------------------------------

MAX = str(2**53 - 1)


@pytest.mark.parametrize(
    ("producer_id", "epoch", "seq"),
    [
        ("order-service-1", "3", "17"),
        ("p", MAX, MAX),
        ("a b", "0", "0"),
        ("!~", "0", "0"),
        ("p" * 256, "0", "0"),
    ],
)
def test_three_valid_producer_headers_are_a_claim(producer_id: str, epoch: str, seq: str) -> None:
    assert producer.parse_claim(producer_id, epoch, seq) == producer.Claim(producer_id, int(epoch), int(seq))


@pytest.mark.parametrize("sent", range(7))
def test_all_producer_headers_are_sent_or_none(sent: int) -> None:
    headers = [value if sent & bit else None for value, bit in (("p", 1), ("0", 2), ("0", 4))]
    if sent == 0:
        assert producer.parse_claim(*headers) is None
    else:
        with pytest.raises(Malformed, match="together"):
            producer.parse_claim(*headers)


@pytest.mark.parametrize(
    "producer_id", ["", " ", " p", "p ", "p\t", "p\0", "p\x7f", "pé", "ｐ", "p" * 257, "a\nb", "a,b", "a,"]
)
def test_an_invalid_producer_id_is_malformed(producer_id: str) -> None:
    with pytest.raises(
        Malformed, match="Producer-Id must be sent once" if "," in producer_id else "Producer-Id"
    ):
        producer.parse_claim(producer_id, "0", "0")


def test_an_epoch_or_sequence_that_is_no_plain_integer_is_malformed() -> None:
    with pytest.raises(Malformed, match="Producer-Epoch"):
        producer.parse_claim("p", "01", "0")
    with pytest.raises(Malformed, match="Producer-Seq"):
        producer.parse_claim("p", "0", "-1")


# --- validation ---------------------------------------------------------------------

STATE = producer.ProducerState("p", epoch=5, seq=10, end=100)


@pytest.mark.parametrize(
    ("state", "epoch", "seq", "duplicate"),
    [
        (None, 0, 0, False),
        (None, 9, 0, False),  # a producer whose state was lost may come with any epoch
        (STATE, 5, 11, False),
        (STATE, 5, 10, True),
        (STATE, 5, 9, True),
        (STATE, 5, 0, True),
        (STATE, 6, 0, False),
        (STATE, 99, 0, False),
        (producer.ProducerState("p", 2**53 - 1, 2**53 - 2, 0), 2**53 - 1, 2**53 - 1, False),
    ],
)
def test_the_next_sequence_is_new_and_an_earlier_one_is_a_duplicate(
    state: producer.ProducerState | None, epoch: int, seq: int, duplicate: bool
) -> None:
    claim = producer.Claim("p", epoch, seq)
    producer.check_producer(state, claim)
    assert producer.is_duplicate(state, claim) is duplicate


@pytest.mark.parametrize(
    ("state", "epoch", "seq", "refusal", "headers"),
    [
        (None, 0, 1, SequenceGap, {"Producer-Expected-Seq": "0", "Producer-Received-Seq": "1"}),
        (None, 3, 7, SequenceGap, {"Producer-Expected-Seq": "0", "Producer-Received-Seq": "7"}),
        (STATE, 5, 12, SequenceGap, {"Producer-Expected-Seq": "11", "Producer-Received-Seq": "12"}),
        (STATE, 4, 11, StaleEpoch, {"Producer-Epoch": "5"}),
        (STATE, 4, 0, StaleEpoch, {"Producer-Epoch": "5"}),
        (STATE, 0, 10, StaleEpoch, {"Producer-Epoch": "5"}),
        (STATE, 6, 1, Malformed, {}),
        (STATE, 6, 11, Malformed, {}),
    ],
)
def test_a_stale_epoch_a_gap_and_a_new_epoch_not_at_zero_are_refused(
    state: producer.ProducerState | None,
    epoch: int,
    seq: int,
    refusal: type[ProtocolError],
    headers: dict[str, str],
) -> None:
    """The epoch is looked at before the sequence."""
    with pytest.raises(refusal) as refused:
        producer.check_producer(state, producer.Claim("p", epoch, seq))
    assert type(refused.value) is refusal
    assert refused.value.headers == headers
