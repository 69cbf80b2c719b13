"""Folds against their definitions: RFC 7386's own table, and a plain dictionary."""

from __future__ import annotations

import orjson
import pytest

from tidemark.spark.snapshots.folds import (
    BadMessage,
    LastByKey,
    MergePatch,
    UnknownFold,
    find_fold,
    fold_messages,
)

#: RFC 7386, appendix A: original, patch, result.
RFC_7386 = [
    ('{"a":"b"}', '{"a":"c"}', '{"a":"c"}'),
    ('{"a":"b"}', '{"b":"c"}', '{"a":"b","b":"c"}'),
    ('{"a":"b"}', '{"a":null}', "{}"),
    ('{"a":"b","b":"c"}', '{"a":null}', '{"b":"c"}'),
    ('{"a":["b"]}', '{"a":"c"}', '{"a":"c"}'),
    ('{"a":"c"}', '{"a":["b"]}', '{"a":["b"]}'),
    ('{"a":{"b":"c"}}', '{"a":{"b":"d","c":null}}', '{"a":{"b":"d"}}'),
    ('{"a":[{"b":"c"}]}', '{"a":[1]}', '{"a":[1]}'),
    ('["a","b"]', '["c","d"]', '["c","d"]'),
    ('{"a":"b"}', '["c"]', '["c"]'),
    ('{"a":"foo"}', "null", "null"),
    ('{"a":"foo"}', '"bar"', '"bar"'),
    ('{"e":null}', '{"a":1}', '{"e":null,"a":1}'),
    ("[1,2]", '{"a":"b","c":null}', '{"a":"b"}'),
    ("{}", '{"a":{"bb":{"ccc":null}}}', '{"a":{"bb":{}}}'),
]


@pytest.mark.parametrize(("original", "patch", "result"), RFC_7386)
def test_merge_patch_follows_rfc_7386(original: str, patch: str, result: str) -> None:
    fold = MergePatch()
    state = fold.apply(fold.load(original.encode()), patch.encode())
    assert orjson.loads(fold.dump(state)) == orjson.loads(result)


def test_last_by_key_keeps_the_last_message_of_each_key() -> None:
    fold = LastByKey("id")
    messages = [
        b'{"id":1,"v":"a"}',
        b'{"id":"1","v":"b"}',
        b'{"id":1,"v":"c"}',
        b'{"id":2}',
        b'{"id":2,"deleted":true}',
    ]
    state = fold_messages(fold, fold.load(None), messages)
    assert fold.dump(state) == b'[{"id":1,"v":"c"},{"id":"1","v":"b"}]'


@pytest.mark.parametrize("name", ["last-by-key", "merge-patch"])
@pytest.mark.parametrize("cut", range(5))
def test_a_fold_in_two_steps_is_the_fold_in_one(name: str, cut: int) -> None:
    """What snapshots rest on: the next one begins from the last one's bytes."""
    messages = [
        b'{"key":"a","x":1}',
        b'{"key":"b","y":{"z":1}}',
        b'{"key":"a","x":null}',
        b'{"y":{"w":2},"key":"b"}',
    ]
    fold = find_fold(name, "key")
    whole = fold_messages(fold, fold.load(None), messages)
    first = fold.dump(fold_messages(fold, fold.load(None), messages[:cut])) if cut else None
    second = fold_messages(fold, fold.load(first), messages[cut:])
    assert orjson.loads(fold.dump(second)) == orjson.loads(fold.dump(whole))


@pytest.mark.parametrize("message", [b"{", b"1", b'"a"', b"[]", b"{}", b'{"id":[]}', b'{"id":{}}'])
def test_a_message_without_the_key_is_refused(message: bytes) -> None:
    fold = LastByKey("id")
    with pytest.raises(BadMessage):
        fold.apply({}, message)


class Count:
    """A fold of one's own."""

    content_type = "text/plain"

    def load(self, snapshot: bytes | None) -> int:
        return int(snapshot or 0)

    def apply(self, state: int, message: bytes) -> int:
        return state + 1

    def dump(self, state: int) -> bytes:
        return str(state).encode()


def test_a_custom_fold_is_loaded_by_module_and_class() -> None:
    fold = find_fold("tests.spark.test_folds:Count", "")
    assert fold.dump(fold_messages(fold, fold.load(b"2"), [b"x", b"y"])) == b"4"


@pytest.mark.parametrize("name", ["", "sum", "nowhere:X", "json:nothing", "json:JSONDecoder"])
def test_an_unknown_fold_is_refused(name: str) -> None:
    with pytest.raises(UnknownFold):
        find_fold(name, "")
