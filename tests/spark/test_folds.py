"""Folds against their definitions: RFC 7386's own table, and a plain dictionary."""

from __future__ import annotations

from random import Random

import orjson
import pytest

from tidemark.spark.folds import (
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


@pytest.mark.parametrize("at_once", [False, True])
def test_a_key_may_be_named_by_a_pointer_and_deleted_as_the_state_protocol_does(at_once: bool) -> None:
    fold = LastByKey("/value/id")
    messages = [
        b'{"value":{"id":1}}',
        b'{"value":{"id":2},"headers":{"operation":"insert"}}',
        b'{"value":{"id":3},"headers":["delete"]}',
        b'{"value":{"id":1},"headers":{"operation":"delete"}}',
    ]
    before = fold.load(b'[{"value":{"id":1,"old":true}},{"value":{"id":4}}]')
    state = fold.apply_many(before, messages) if at_once else fold_messages(fold, before, messages)
    assert [row["value"]["id"] for row in orjson.loads(fold.dump(state))] == [4, 2, 3]
    for bad in (b'{"value":1}', b'{"value":{}}', b"[]"):
        with pytest.raises(BadMessage, match="/value/id"):
            fold.apply({}, bad)


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


#: Messages that a fold by `id` takes; those of the first 15 have plain keys.
GOOD = (
    *(b'{"id":%d,"n":%d}' % (key, n) for key in range(3) for n in range(3)),
    *(b'{"id":"%d"}' % key for key in range(3)),
    *(b'{"id":%d,"deleted":true}' % key for key in range(3)),
    *b'{"id":"1","deleted":1} {"id":1,"id":2} {"id":1.0} {"id":true} {"id":null} {"id":1.5}'.split(),
    *b'{"id":9223372036854775808} {"id":123456789012345678901234567890}'.split(),
    *(b' {"id":1}', b'{"id":1}\n', b'{"id":1,"headers":[1]}', b'{"id":2,"headers":{"operation":"update"}}'),
    *(b'{"id":%d,"headers":{"operation":"delete"}}' % key for key in range(3)),
)
#: Texts that are not such a message, though some are JSON together with others.
BAD = (
    *b'{"id":1},{"id":2} {"id":1 "x":2} 1,2 [1 2] {"id":1}] [{"id":1} { 1 "a" [] null {}'.split(),
    *b'{"id":[]} {"id":{}} {"id":1,"x":"\\ud800"} {"id":NaN}'.split(),
    *(b"", b" ", b'{"id":1}\x00', b"\xef\xbb\xbf1", b'{"id":1,"x":%s}' % (b"[" * 2000 + b"]" * 2000)),
)


@pytest.mark.parametrize("message", BAD)
def test_what_is_no_message_with_the_key_is_refused(message: bytes) -> None:
    with pytest.raises(BadMessage):
        LastByKey("id").apply({}, message)


@pytest.mark.parametrize("seed", range(150))
def test_many_messages_at_once_are_folded_as_one_by_one(seed: int) -> None:
    """Or they are refused before the state is changed."""
    chance, fold = Random(seed), LastByKey("id")
    parts = GOOD if seed % 3 else GOOD[:12]
    messages = [chance.choice(parts) for _ in range(chance.randrange(1, 12))]
    for _ in range(chance.randrange(3) if seed % 2 else 0):
        messages.insert(chance.randrange(len(messages) + 1), chance.choice(BAD))
    before = fold_messages(fold, {}, GOOD[: chance.randrange(12)])
    state = dict(before)
    try:
        state = fold.apply_many(state, messages)
    except BadMessage:
        assert list(state.items()) == list(before.items())
        assert seed % 2 or seed % 3, "messages with plain keys"
    else:
        assert list(state.items()) == list(fold_messages(fold, dict(before), messages).items())


@pytest.mark.parametrize("bad", [b'{"id":1,"x":1e999}', b'{"id":1,"x":"\xff"}'])
def test_a_message_that_no_snapshot_can_be_read_with_is_refused(bad: bytes) -> None:
    fold = LastByKey("id")
    with pytest.raises(BadMessage):
        fold.apply_many({}, [b'{"id":1}', bad])
    # Where it is not the last of its key it is in no snapshot.
    assert fold.apply_many({}, [bad, b'{"id":1}']) == {1: b'{"id":1}'}


@pytest.mark.parametrize("key", ["deleted", 'a"b', "a\\b", "a\nb"])
def test_a_key_of_any_name_is_folded_one_by_one_at_least(key: str) -> None:
    fold, message = LastByKey(key), orjson.dumps({key: "x"})
    with pytest.raises(BadMessage):
        fold.apply_many({}, [message])
    assert fold.apply({}, message) == {"x": message}


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
    for name in ("", "sum", "nowhere:X", "json:nothing", "json:JSONDecoder"):
        with pytest.raises(UnknownFold):
            find_fold(name, "")
