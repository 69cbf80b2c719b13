"""The items of a log: batches, the packs that replace many batches, and the tombstone."""

from __future__ import annotations

import logging
import sys
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Iterable
from typing import Final

import orjson

from tidemark.log.combining import MAIL_ID_BYTES, Mailed
from tidemark.log.pack_format import RAW, CorruptPack, decode_index, fast_zlib
from tidemark.log.records import UNKNOWN_CHECKSUMS, Batch, Checksums, Entry, Pack, Tombstone
from tidemark.log.schema.items import BLOB, END, PK, SK, Item, Key, make_key, number
from tidemark.protocol.errors import Damaged
from tidemark.protocol.offset import WIDTH, render_offset
from tidemark.protocol.producer import Claim, ProducerState
from tidemark.protocol.stream_key import StreamKey
from tidemark.protocol.tail import Tail

#: If this many bytes at the start of a body do not shrink, the rest is not compressed.
_PROBE_BYTES: Final = 2048
#: The fastest level of ISA-L for text. In zlib, a third of the default's time, for a tenth more bytes.
_LEVEL: Final = 2


def binary(data: bytes) -> dict[str, str]:
    return {"B": b64encode(data).decode()}


def deflate(data: bytes) -> bytes | None:
    """Return `data` compressed; None if that saves less than an eighth, and `data` is stored as it is."""
    if len(data) > 2 * _PROBE_BYTES and _smaller(data[:_PROBE_BYTES]) is None:
        return None
    return _smaller(data)


def inflate(deflated: bytes, size: int) -> bytes:
    """Return the `size` inflated bytes. Raises ValueError for any other size."""
    inflating = fast_zlib().decompressobj(RAW)
    try:
        data: bytes = inflating.decompress(deflated, size + 1)
    except fast_zlib().error as failure:
        raise ValueError(str(failure)) from failure
    if len(data) != size or not inflating.eof or inflating.unused_data:
        raise ValueError(f"{len(deflated)} bytes do not inflate to {size}")
    return data


def inflate_all(deflated: bytes) -> bytes:
    """Return the inflated bytes, if few and deflated here. Raises ValueError if they are incomplete."""
    try:
        data: bytes = fast_zlib().decompress(deflated, RAW)
    except fast_zlib().error as failure:
        raise ValueError(str(failure)) from failure
    return data


def _smaller(data: bytes) -> bytes | None:
    deflated: bytes = fast_zlib().compress(data, _LEVEL, RAW)
    return deflated if len(deflated) <= len(data) * 7 // 8 else None


_log = logging.getLogger("tidemark")

APPEND_ID: Final = "i"
TIME_MS: Final = "t"
DATA: Final = "b"
DEFLATED_DATA: Final = "z"
MESSAGE_LENGTHS: Final = "m"  # LEB128, if there are several
APPENDS: Final = "g"  # LEB128: messages of each append, if there are several
TOMBSTONE: Final = "x"
CLOSED: Final = "c"
CLOSED_BY: Final = "k"  # JSON: the claim that closed the stream
STREAM_SEQ: Final = "q"
PRODUCERS: Final = "p"  # JSON, deflated if it is long: the most recent producers
OVERFLOWED: Final = "o"  # some producer has an item of its own
COMMITTED_MAIL: Final = "v"  # id and size of each combined append
CHECKSUMS: Final = "h"  # CRC-32 of the chain before the batch, if known, and after it: 4 bytes each
PACK_COMPACTED: Final = "pc"  # of a pack: the offset up to which compaction has compared it
PACK_INDEX: Final = "px"  # of a pack: the places of its blocks in the object (`log/pack_format.py`)

#: Sorts after an offset and before the next one.
_BEHIND: Final = "."
#: What `decode_entry` needs of any entry. PACK_INDEX is for writers with an old tail.
_ENTRY_ATTRIBUTES: Final = (SK, END, TOMBSTONE, APPEND_ID, TIME_MS, CHECKSUMS, PACK_INDEX)
#: The optional attributes that `_encode_tail` adds.
_TAIL_ATTRIBUTES: Final = (CLOSED, STREAM_SEQ, PRODUCERS, OVERFLOWED, CLOSED_BY)
_IN_TAIL: Final = frozenset(_TAIL_ATTRIBUTES)
#: The attributes for checking a snapshot's offset against the last batch that begins at or before the offset.
BOUNDARY_ATTRIBUTES: Final = (*_ENTRY_ATTRIBUTES, MESSAGE_LENGTHS, BLOB)
#: The attributes for a read of the tail: not the bytes.
STATE_ATTRIBUTES: Final = (*_ENTRY_ATTRIBUTES, *_TAIL_ATTRIBUTES, COMMITTED_MAIL)


def log_pk(key: StreamKey, incarnation: str) -> str:
    """Return the log's partition key, which names the stream, so that the notifier knows the readers to
    wake."""
    return f"log/{key.bucket}/{key.stream_id}#{incarnation}"


def is_log_pk(pk: str) -> bool:
    return pk.startswith("log/")


def decode_log_pk(pk: str) -> tuple[StreamKey, str]:
    name, _, incarnation = pk.removeprefix("log/").rpartition("#")
    bucket, _, stream_id = name.partition("/")
    return StreamKey(bucket, stream_id), incarnation


def decode_batch_start(sk: str) -> int:
    return int(sk[:WIDTH])


def entry_sk(entry: Entry) -> str:
    is_behind = isinstance(entry, Tombstone) and entry.behind_closing
    return render_offset(entry.start) + (_BEHIND if is_behind else "")


def just_behind(start: int) -> str:
    """Return the lowest sort key after the batch that begins at `start`."""
    return render_offset(start) + _BEHIND


def _encode_written(pk: str, sk: str, entry: Entry) -> Item:
    """An entry has no time to live of its own: forks may need it after its stream has expired."""
    return {
        PK: {"S": pk},
        SK: {"S": sk},
        END: {"N": str(entry.end)},
        APPEND_ID: {"S": entry.append_id},
        TIME_MS: {"N": str(entry.time_ms)},
    }


def encode_tombstone(pk: str, tombstone: Tombstone) -> Item:
    item = _encode_written(pk, entry_sk(tombstone), tombstone)
    return item | {TOMBSTONE: {"BOOL": True}} | _encode_tail(tombstone.after)


def encode_batch(pk: str, batch: Batch) -> Item:
    item = _encode_written(pk, render_offset(batch.start), batch)
    if batch.data:
        item |= encode_data(batch.data)
    if batch.blob is not None:
        item[BLOB] = {"S": batch.blob}
    if len(batch.lengths) > 1:
        item[MESSAGE_LENGTHS] = binary(encode_lengths(batch.lengths))
    if len(batch.appends) > 1:
        item[APPENDS] = binary(encode_lengths(batch.appends))
    if batch.mailed:
        item[COMMITTED_MAIL] = binary(_encode_mailed(batch))
    return item | _encode_checksums(batch.checksums) | _encode_tail(batch.after)


def _encode_checksums(checksums: Checksums) -> Item:
    if checksums.after is None:
        return {}
    before = b"" if checksums.before is None else checksums.before.to_bytes(4, "big")
    return {CHECKSUMS: binary(before + checksums.after.to_bytes(4, "big"))}


def decode_checksums(encoded: bytes) -> Checksums:
    before = int.from_bytes(encoded[:4], "big") if len(encoded) == 8 else None
    return Checksums(before, int.from_bytes(encoded[-4:], "big"))


#: Smaller bodies are not deflated: their items fit the 1 KB that is the minimum charge of a write.
_DEFLATED_FROM_BYTES: Final = 768


def encode_data(data: bytes) -> Item:
    deflated = deflate(data) if len(data) >= _DEFLATED_FROM_BYTES else None
    return {DATA: binary(data)} if deflated is None else {DEFLATED_DATA: binary(deflated)}


def _encode_mailed(batch: Batch) -> bytes:
    """Encode each append as its id in 8 bytes and its size as LEB128."""
    encoded, start = bytearray(), batch.start
    for mailed in batch.mailed:
        encoded += bytes.fromhex(mailed.mail_id) + encode_lengths([mailed.end - start])
        start = mailed.end
    return bytes(encoded)


def _decode_mailed(encoded: bytes, start: int) -> tuple[Mailed, ...]:
    mailed, at, end = [], 0, start
    while at < len(encoded):
        behind = at + MAIL_ID_BYTES
        while encoded[behind] & 0x80:
            behind += 1
        [size] = decode_lengths(encoded[at + MAIL_ID_BYTES : behind + 1])
        end += size
        mailed.append(Mailed(encoded[at : at + MAIL_ID_BYTES].hex(), end))
        at = behind + 1
    return tuple(mailed)


def encode_pack(
    pk: str, first: Batch | Pack, last: Batch | Pack, blob: str, index: bytes, *, compacted: int = 0
) -> Item:
    """Return the item that replaces all entries from `first` to `last`. It keeps the append id of the first
    batch, so that a late copy of that write still recognizes itself."""
    return (
        make_key(pk, entry_sk(first))
        | {
            END: {"N": str(last.end)},
            APPEND_ID: {"S": first.append_id},
            TIME_MS: {"N": str(last.time_ms)},
            BLOB: {"S": blob},
            PACK_INDEX: binary(index),
        }
        | _encode_checksums(Checksums(first.checksums.before, last.checksums.after))
        | ({PACK_COMPACTED: {"N": str(compacted)}} if compacted else {})
    )


def _encode_tail(tail: Tail) -> Item:
    item: Item = {}
    if tail.closed:
        item[CLOSED] = {"BOOL": True}
    if tail.stream_seq is not None:
        item[STREAM_SEQ] = {"S": tail.stream_seq}
    if tail.producers:
        rows = [[state.producer_id, state.epoch, state.seq, state.end] for state in tail.producers]
        encoded = orjson.dumps(rows)
        many = deflate(encoded)  # Keeps a batch of a crowded stream within one write unit.
        item[PRODUCERS] = {"S": encoded.decode()} if many is None else binary(many)
    if tail.overflowed:
        item[OVERFLOWED] = {"BOOL": True}
    if tail.closed_by is not None:
        claim = tail.closed_by
        item[CLOSED_BY] = {"S": orjson.dumps([claim.producer_id, claim.epoch, claim.seq]).decode()}
    return item


def decode_entry(item: Item) -> Entry:
    """Return the entry. Its `data` is None if the item was read without its bytes (STATE_ATTRIBUTES,
    BOUNDARY_ATTRIBUTES). Raises Damaged if the bytes do not match the item's offsets and checksums."""
    try:
        sk: str = item[SK]["S"]
        start, end = int(sk[:WIDTH]), int(item[END]["N"])
        checksums = UNKNOWN_CHECKSUMS
        if CHECKSUMS in item:
            checksums = decode_checksums(a2b_base64(item[CHECKSUMS]["B"]))
        if PACK_INDEX in item:
            return _decode_pack(item, start, end, checksums)
        if TOMBSTONE in item:
            after, time_ms = _decode_tail(item, end), int(item[TIME_MS]["N"])
            return Tombstone(start, after, item[APPEND_ID]["S"], time_ms, sk.endswith(_BEHIND))
        size = end - start
        lengths: tuple[int, ...] = (size,) if size > 0 else ()
        if MESSAGE_LENGTHS in item:
            lengths = decode_lengths(a2b_base64(item[MESSAGE_LENGTHS]["B"]))
        data = decode_data(item, size)
        if data is not None and not checksums.fit(start, data):
            _log.error("a batch is damaged: %s at %s does not fit its checksum", *_place(item))
            raise Damaged
        # Positional arguments: a read decodes thousands, and keywords cost a seventh of the time.
        return Batch(
            start,
            _decode_tail(item, end),
            item[APPEND_ID]["S"],
            int(item[TIME_MS]["N"]),
            data,
            item[BLOB]["S"] if BLOB in item else None,
            lengths,
            decode_lengths(a2b_base64(item[APPENDS]["B"])) if APPENDS in item else (),
            _decode_mailed(a2b_base64(item[COMMITTED_MAIL]["B"]), start) if COMMITTED_MAIL in item else (),
            checksums=checksums,
        )
    except (IndexError, KeyError, TypeError, ValueError) as fault:
        kind = "pack" if PACK_INDEX in item else "batch"
        _log.error("a %s is damaged: %s at %s: %r", kind, *_place(item), fault)
        raise Damaged from fault


def _decode_pack(item: Item, start: int, end: int, checksums: Checksums) -> Pack:
    index = decode_index(a2b_base64(item[PACK_INDEX]["B"]))
    if (index.start, index.end) != (start, end):
        raise CorruptPack(f"the index is of {index.start} to {index.end}")
    blob, compacted = item[BLOB]["S"] if BLOB in item else None, number(item, PACK_COMPACTED) or 0
    return Pack(
        start, Tail(end), item[APPEND_ID]["S"], int(item[TIME_MS]["N"]), blob, index, checksums, compacted
    )


def decode_state(item: Item) -> Entry:
    """Return an entry with only STATE_ATTRIBUTES, on which writers decide. Writers do not need the bytes, so
    damaged bytes do not stop them."""
    return decode_entry({name: item[name] for name in STATE_ATTRIBUTES if name in item})


def decode_data(item: Item, size: int) -> bytes | None:
    """Return the bytes; None if they are in a blob or were not read."""
    try:
        found = item.get(DEFLATED_DATA) or item.get(DATA)
        if found is None:
            return None if size else b""
        # Used only if loaded, as in a server: a quarter of the time, but its import costs more than a page.
        msgspec = sys.modules.get("msgspec")
        data: bytes = msgspec.convert(found["B"], bytes) if msgspec else a2b_base64(found["B"])
        if DEFLATED_DATA in item:
            return inflate(data, size)
    except ValueError as fault:
        _log.error("a batch is damaged: %s at %s: %s", *_place(item), fault)
        raise Damaged from fault
    if len(data) != size:
        _log.error("a batch is damaged: %s at %s has %d bytes in place of %d", *_place(item), len(data), size)
        raise Damaged
    return data


def _place(item: Item) -> tuple[str, str]:
    return item.get(PK, {}).get("S", "?"), item.get(SK, {}).get("S", "?")


def _decode_tail(item: Item, offset: int) -> Tail:
    if _IN_TAIL.isdisjoint(item):  # Most batches have none of these.
        return Tail(offset)
    return Tail(
        offset=offset,
        closed=CLOSED in item,
        stream_seq=item[STREAM_SEQ]["S"] if STREAM_SEQ in item else None,
        producers=_decode_producers(item[PRODUCERS]) if PRODUCERS in item else (),
        overflowed=OVERFLOWED in item,
        closed_by=Claim(*orjson.loads(item[CLOSED_BY]["S"])) if CLOSED_BY in item else None,
    )


def _decode_producers(encoded: dict[str, str]) -> tuple[ProducerState, ...]:
    rows = encoded["S"] if "S" in encoded else inflate_all(a2b_base64(encoded["B"]))
    return tuple(ProducerState(*row) for row in orjson.loads(rows))


def encode_lengths(lengths: Iterable[int]) -> bytes:
    """Encode message lengths as LEB128: one byte for each message under 128 bytes."""
    encoded = bytearray()
    for length in lengths:
        left = length
        while left > 0x7F:
            encoded.append(left & 0x7F | 0x80)
            left >>= 7
        encoded.append(left)
    return bytes(encoded)


def decode_lengths(encoded: bytes) -> tuple[int, ...]:
    if encoded.isascii():
        return tuple(encoded)  # One byte each.
    low, high = encoded[::2], encoded[1::2]
    if len(low) == len(high) and high.isascii() and min(low) > 0x7F:  # Two bytes each.
        return tuple([(more << 7) + some - 0x80 for some, more in zip(low, high, strict=True)])
    lengths, length, shift = [], 0, 0
    for byte in encoded:
        length |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            lengths.append(length)
            length, shift = 0, 0
    return tuple(lengths)


def batch_key(pk: str, start: int) -> Key:
    return make_key(pk, render_offset(start))
