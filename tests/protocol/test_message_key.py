"""A message's key: the fast decoding agrees with a plain reference on all JSON, and digests with keys."""

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.test_messages import VALUES, at_a_depth_of_the_stack, nested, padded
from tidemark.protocol.json_text import MAX_DEPTH, check_value
from tidemark.protocol.message_key import make_key_rule

POINTERS = [
    None, "/id", "/value/id", "/", "/a~1b/~0", '/"', "/\\", "/headers", "/headers/id", "/headers/operation",
    "/type/0",
]  # fmt: skip

# --- the reference ------------------------------------------------------------------------


def reference(pointer: str | None, text: bytes) -> tuple[Any, bool] | None:
    """The key as a Python value and whether it is deleted, of the whole message as a Python value."""
    message = json.loads(text)
    headers = follow(message, "headers")
    operation = follow(headers, "operation")
    if pointer is None:
        key = (follow(message, "type"), follow(message, "key"))
        is_change = isinstance(operation, str) and operation in ("insert", "update", "upsert", "delete")
        if not is_change or "control" in headers or not all(isinstance(part, str) for part in key):
            return None
        return key, operation == "delete"
    at = message
    for name in pointer.split("/")[1:]:
        at = follow(at, name.replace("~1", "/").replace("~0", "~"))
    if at is None or isinstance(at, list | dict):
        return None
    kind = "number" if isinstance(at, int | float) and not isinstance(at, bool) else type(at).__name__
    return (kind, at), operation == "delete"


def follow(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


# --- messages that have keys, nearly ------------------------------------------------------

TEXTS = st.sampled_from(
    ["a", "b", "\\u0061", "1", "", "\\ud800", "\\udc00", "\\ud83d\\ude00", "😀", "é", '\\"']
).map('"{}"'.format)
NUMBERS = st.sampled_from(
    ["1", "1.0", "1e0", "10E-1", "0", "-0", "-0.0", "true", "false", "9007199254740993", "9007199254740992",
     "9007199254740992.0", "18446744073709551616", "1e308", "0.1", "0.10", "7" * 300, "1." + "0" * 5000]
)  # fmt: skip
OPERATIONS = st.sampled_from(
    ["insert", "update", "upsert", "delete", "del\\u0065te", "Delete", "patch", "\\ud800"]
).map('"{}"'.format)
ANY = st.one_of(TEXTS, NUMBERS, OPERATIONS, VALUES)


def objects(**members: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Mostly with each member once, in any order; also with some twice or never. A name has two forms."""
    pairs = [st.tuples(st.sampled_from(forms(name)), value) for name, value in members.items()]
    usual, any_of_them = st.tuples(*pairs).map(list), st.lists(st.one_of(pairs), max_size=3)
    chosen = usual | any_of_them | st.tuples(usual, any_of_them).map(lambda both: both[0] + both[1])
    texts = chosen.flatmap(st.permutations).map(
        lambda of: ",".join(f'"{name}": {value}' for name, value in of)
    )
    return padded(texts.map("{{{}}}".format))


def forms(name: str) -> list[str]:
    return [name, f"\\u{ord(name[0]):04x}{name[1:]}"] if name.isalpha() else [name]


OPERATION = objects(operation=OPERATIONS, txid=TEXTS)
HEADERS = OPERATION | objects(operation=OPERATIONS | ANY, control=ANY, id=ANY)
CHANGES = objects(type=TEXTS, key=TEXTS, headers=OPERATION, value=VALUES)
ROWS = objects(id=TEXTS | NUMBERS, value=objects(id=NUMBERS | ANY), headers=HEADERS)
OTHERS = st.one_of(
    CHANGES,
    objects(type=ANY, key=ANY, headers=HEADERS | ANY, id=ANY),
    objects(**{"": ANY, "a/b": objects(**{"~": ANY}), '\\"': ANY, "\\\\": ANY, "\\ud800": ANY}),
    nested(),
    VALUES,
)
#: A pointer, and messages that have such keys or might have them.
CASES = st.one_of(
    [
        st.tuples(st.sampled_from(pointers), st.lists(messages, min_size=1, max_size=5))
        for pointers, messages in ((POINTERS[:1], CHANGES), (POINTERS[1:3], ROWS), (POINTERS, ROWS | OTHERS))
    ]
)


@given(CASES)
def test_digests_are_equal_exactly_if_the_references_keys_are(case: tuple[str | None, list[str]]) -> None:
    rule = make_key_rule(case[0])
    keys: dict[bytes, Any] = {}
    for text in case[1]:
        message = check_value(text.encode())
        keyed, expected = rule(message), reference(case[0], message)
        assert rule(message + b",") == keyed, "the comma that a message is stored with"
        if keyed is None or expected is None:
            assert keyed is expected
        else:
            assert (len(keyed[0]), keyed[1]) == (16, expected[1])
            assert keys.setdefault(keyed[0], expected[0]) == expected[0]
    assert len(keys) == len(set(keys.values()))


# --- single rules -------------------------------------------------------------------------

ROW = '{"type":"row","key":"1","headers":{"operation":"update"}}'


@pytest.mark.parametrize(
    "message",
    [
        '{"key":"1","headers":{"operation":"update"}}',
        '{"type":"row","key":1,"headers":{"operation":"update"}}',
        '{"type":"row","key":"1"}',
        '{"type":"row","key":"1","headers":null}',
        '{"type":"row","key":"1","headers":{"operation":"increment"}}',
        '{"type":"row","key":"1","headers":{"control":"reset"}}',
        '{"type":"row","key":"1","headers":{"control":null,"operation":"delete"}}',
        '{"type":"row","key":"1","key":2,"headers":{"operation":"update"}}',
        "[" + ROW + "]",
        '"text"',
    ],
)
def test_what_is_no_change_of_the_state_protocol_has_no_key(message: str) -> None:
    rule = make_key_rule(None)
    assert rule(ROW.encode()) is not None
    assert rule(message.encode()) is None


@pytest.mark.parametrize(
    ("pointer", "message", "same"),
    [
        ("/id", '{"id":1}', '{"id":1e0}'),
        ("/id", '{"id":0}', '{"id":-0.0}'),
        ("/id", '{"id":"é"}', '{"id":2,"\\u0069d":"\\u00e9"}'),
        ("/a~1b/~01", '{"a/b":{"~1":true}}', '{"a/b":{"~1":true,"x":[]}}'),
        ("/headers/operation", '{"headers":{"operation":"a"}}', '{"headers":{"operation":"a"},"x":1}'),
        (None, ROW, ROW.replace("update", "delete")),
    ],
)
def test_two_ways_to_write_a_key_are_one_key(pointer: str | None, message: str, same: str) -> None:
    first, second = (make_key_rule(pointer)(text.encode()) for text in (message, same))
    assert first is not None
    assert second is not None
    assert (first[0], first[1], second[1]) == (second[0], False, "delete" in same)


@pytest.mark.parametrize(
    ("pointer", "messages"),
    [
        ("/id", ['{"id":1}', '{"id":"1"}', '{"id":true}', '{"id":"true"}', '{"id":1.5}', '{"id":""}']),
        ("/id", ['{"id":9007199254740992}', '{"id":9007199254740993}']),
        (None, [ROW.replace("row", "ro").replace('"1"', '"w1"'), ROW, ROW.replace("row", "row1")]),
    ],
)
def test_keys_of_other_kinds_or_beyond_a_double_differ(pointer: str | None, messages: list[str]) -> None:
    assert len({make_key_rule(pointer)(text.encode()) for text in messages} - {None}) == len(messages)


@pytest.mark.parametrize("pointer", [None, "/id", "/headers/id"])
def test_the_deepest_messages_raise_nothing_however_much_of_the_stack_is_in_use(pointer: str | None) -> None:
    rule = make_key_rule(pointer)
    deep = "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    headers = '"headers":{"operation":"update","id":"1"}'
    for lone in ("", "\\ud800"):
        text = f'{{"type":"row","key":"1","id":"1",{headers},"value":{deep},"lone":"{lone}"}}'
        message = check_value(text.encode())
        assert rule(message) is not None
        assert at_a_depth_of_the_stack(800, partial(rule, message)) is None, "it stays"
