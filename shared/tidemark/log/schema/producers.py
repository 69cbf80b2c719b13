"""The item of a producer whose last append is not named by the log's last batch any more."""

from __future__ import annotations

from typing import Final

from tidemark.log.schema.items import END, SK, Item, Key, make_key
from tidemark.protocol.producer import ProducerState

EPOCH: Final = "ep"
SEQUENCE: Final = "sq"


def producer_pk(incarnation: str) -> str:
    return f"producer/{incarnation}"


def producer_key(incarnation: str, producer_id: str) -> Key:
    return make_key(producer_pk(incarnation), producer_id)


def encode_producer(incarnation: str, state: ProducerState) -> Item:
    """A producer that was pushed out of the batch."""
    return producer_key(incarnation, state.producer_id) | {
        EPOCH: {"N": str(state.epoch)},
        SEQUENCE: {"N": str(state.seq)},
        END: {"N": str(state.end)},
    }


def decode_producer(item: Item) -> ProducerState:
    return ProducerState(
        producer_id=item[SK]["S"],
        epoch=int(item[EPOCH]["N"]),
        seq=int(item[SEQUENCE]["N"]),
        end=int(item[END]["N"]),
    )
