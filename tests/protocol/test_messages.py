"""Messages: JSON kept byte for byte, and everything else too."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.json_text import BLANK, VALUES, arrays
from tidemark.protocol.errors import Malformed, TooManyMessages
from tidemark.protocol.json_text import MAX_DEPTH
from tidemark.protocol.messages import (
    MAX_MESSAGES,
    NOTHING,
    Messages,
    parse_content_type,
    parse_messages,
    render_body,
)

JSON = parse_content_type("application/json")
OTHERS = [
    parse_content_type(header)
    for header in ("application/octet-stream", "text/plain", "application/ndjson", "application/vnd.api+json")
]


def split(messages: Messages) -> list[bytes]:
    """The messages without the comma each is stored with."""
    texts, start = [], 0
    for length in messages.lengths:
        text = messages.data[start : start + length]
        assert text.endswith(b",")
        texts.append(text[:-1])
        start += length
    assert start == len(messages.data), "the lengths add up to what is stored"
    return texts


# --- JSON ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # the examples of §9.1.2
        ('{"event": "created"}', ['{"event": "created"}']),
        ('[{"event": "a"}, {"event": "b"}]', ['{"event": "a"}', '{"event": "b"}']),
        ("[[1,2], [3,4]]", ["[1,2]", "[3,4]"]),
        ("[[[1,2,3]]]", ["[[1,2,3]]"]),
        # nothing is a value too
        ("[]", []),
        (" [ \n ] ", []),
        ("[[]]", ["[]"]),
        ("null", ["null"]),
        ("[null]", ["null"]),
        ('""', ['""']),
        # what must not change
        ('{"b":1,"a":2,"b":3}', ['{"b":1,"a":2,"b":3}']),
        ('{ "a" :\t1 }', ['{ "a" :\t1 }']),
        ("[1.0, 1, 1e0, 10E-1, -0, -0.0]", ["1.0", "1", "1e0", "10E-1", "-0", "-0.0"]),
        ("[12345678901234567890, 0.1000000000000000055511151231257827]", None),
        ('["\\u00e9", "é", "\\/", "/"]', ['"\\u00e9"', '"é"', '"\\/"', '"/"']),
        ('["a,b", "[", "]", "\\"", "\\\\"]', ['"a,b"', '"["', '"]"', '"\\""', '"\\\\"']),
        ('"\\ud83d\\ude00"', ['"\\ud83d\\ude00"']),
        # white space around goes, inside stays
        ("\r\n\t {} \n", ["{}"]),
        ("[ 1 ,\n{ } ]", ["1", "{ }"]),
    ],
)
def test_json_messages_are_stored_as_they_were_sent(body: str, expected: list[str] | None) -> None:
    texts = [text.decode() for text in split(parse_messages(JSON, body.encode()))]
    assert texts == (expected if expected is not None else body.strip("[]").split(", "))


@given(BLANK, VALUES, BLANK)
def test_one_value_is_one_message(before: str, text: str, after: str) -> None:
    """Key order, duplicate keys, number text, escapes and white space inside: as sent."""
    messages = split(parse_messages(JSON, (before + text + after).encode()))
    if text.startswith("["):
        assert [json.loads(message) for message in messages] == json.loads(text)
    else:
        assert messages == [text.encode()]


@given(arrays())
def test_an_array_is_flattened_by_one_level(array: tuple[str, list[str]]) -> None:
    """Exactly the texts of the elements, whatever they hold."""
    body, elements = array
    messages = split(parse_messages(JSON, body.encode()))
    assert messages == [element.encode() for element in elements]
    assert [json.loads(message) for message in messages] == json.loads(body)


@given(arrays())
def test_a_read_returns_the_values_that_were_appended(array: tuple[str, list[str]]) -> None:
    body, elements = array
    rendered = render_body(JSON, parse_messages(JSON, body.encode()).data)
    assert rendered == b"[" + ",".join(elements).encode() + b"]"
    assert json.loads(rendered) == json.loads(body)


@given(arrays(), st.data())
def test_a_read_between_any_two_message_ends_is_valid_json(
    array: tuple[str, list[str]], data: st.DataObject
) -> None:
    """Stored bytes cut at message ends render as the values that lie between."""
    body, elements = array
    messages = parse_messages(JSON, body.encode())
    first = data.draw(st.integers(min_value=0, max_value=len(elements)))
    last = data.draw(st.integers(min_value=first, max_value=len(elements)))
    start, end = sum(messages.lengths[:first]), sum(messages.lengths[:last])
    assert json.loads(render_body(JSON, messages.data[start:end])) == json.loads(body)[first:last]


@given(arrays(), arrays())
def test_two_appends_are_read_as_one_array(one: tuple[str, list[str]], other: tuple[str, list[str]]) -> None:
    stored = b"".join(parse_messages(JSON, body.encode()).data for body, _ in (one, other))
    assert json.loads(render_body(JSON, stored)) == json.loads(one[0]) + json.loads(other[0])


INVALID = {
    "blank": b" \n",
    "cut short": b'{"a":',
    "word": b"hello",
    "two values": b"1 2",
    "two objects": b'{"a":1}{"b":2}',
    "newline-delimited": b'{"a":1}\n{"b":2}\n',
    "trailing comma": b"[1,]",
    "leading comma": b"[,1]",
    "comma alone": b"[,]",
    "comma behind": b"{},",
    "trailing comma in an object": b'{"a":1,}',
    "unclosed": b"[1",
    "unopened": b"1]",
    "mismatched": b"[1}",
    "single quotes": b"{'a':1}",
    "bare key": b"{a:1}",
    "number as key": b"{1:1}",
    "comment": b"[1/*x*/]",
    "NaN": b"NaN",
    "NaN inside": b'[{"a":NaN}]',
    "Infinity": b"[Infinity]",
    "-Infinity": b"-Infinity",
    "plus": b"+1",
    "leading zero": b"01",
    "bare point": b".5",
    "point at the end": b"5.",
    "hex": b"0x10",
    "True": b"True",
    "control character in a string": b'"\x01"',
    "newline in a string": b'"a\nb"',
    "NUL": b"\0",
    "NUL behind": b"1\0",
    "NUL in a string": b'"\0"',
    "bad escape": b'"\\x41"',
    "cut escape": b'"\\u12"',
    "byte order mark": b"\xef\xbb\xbf[1]",
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "invalid UTF-8": b'"\xff"',
    "invalid UTF-8 inside": b'[{"a":"\xc3\x28"}]',
    "overlong UTF-8": b'"\xc0\xaf"',
    "half a character": '["é"]'.encode()[:-3] + b'"]',
    "surrogate in UTF-8": b'"\xed\xa0\x80"',
    "vertical tab": b"\x0b1",
    "no-break space": "\u00a01".encode(),
}


@pytest.mark.parametrize("body", INVALID.values(), ids=INVALID.keys())
def test_a_body_that_is_not_json_is_malformed(body: bytes) -> None:
    """400 and nothing else: no error of a parser's own, no recursion that ends the process."""
    with pytest.raises(Malformed, match="Invalid JSON"):
        parse_messages(JSON, body)


@pytest.mark.parametrize(
    "body",
    [
        '"\\ud800"',
        '"\\udc00"',
        '"\\udc00\\ud800"',
        '{"\\ud800":1}',
        '{"a":["\\ud83d"]}',
        '"\\\\ud800\\udfff"',
    ],
)
def test_a_lone_surrogate_escape_is_json_and_is_kept(body: str) -> None:
    """JavaScript's JSON.stringify writes it for a string that was cut inside an emoji."""
    assert split(parse_messages(JSON, body.encode())) == [body.encode()]
    batch = f'[1, {body}, [{body}], "after"]'.encode()
    assert split(parse_messages(JSON, batch)) == [b"1", body.encode(), f"[{body}]".encode(), b'"after"']


TOO_LARGE = [
    b"1e400",
    b"-1e400",
    b"1" * 10_000,
    b"17976931348623159" + b"0" * 292,
    b"1.8e308",
    b"1e" + b"9" * 30,
]


@pytest.mark.parametrize("number", TOO_LARGE, ids=lambda number: number[:20].decode())
@pytest.mark.parametrize("around", [(b"", b""), (b"[", b"]"), (b'[1,{"a":[', b"]}]")])
def test_a_number_beyond_a_double_is_refused_and_not_called_invalid_json(
    number: bytes, around: tuple[bytes, bytes]
) -> None:
    """RFC 8259 §6 lets an implementation limit the range of numbers."""
    with pytest.raises(Malformed, match="beyond the range of a double") as refused:
        parse_messages(JSON, around[0] + number + around[1])
    assert "nvalid" not in str(refused.value)


@pytest.mark.parametrize(
    "number", [b"1.7976931348623157e308", b"1e-400", b"0e400", b"0.000e999", b"-1e0000308"]
)
def test_a_number_that_a_double_holds_is_kept(number: bytes) -> None:
    assert split(parse_messages(JSON, number)) == [number]
    assert split(parse_messages(JSON, b"[1," + number + b"]")) == [b"1", number]


NESTED = {
    "arrays": lambda depth: b"[" * depth + b"1" + b"]" * depth,
    "empty arrays": lambda depth: b"[" * depth + b"]" * depth,
    "objects": lambda depth: b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1),
    "mixed": lambda depth: b'[{"a":' * (depth // 2) + b"0" + b"}]" * (depth // 2),
    "after siblings": lambda depth: b'{"x":[1],"a":' * (depth - 1) + b"[]" + b',"y":0}' * (depth - 1),
}


@pytest.mark.parametrize("nested", NESTED.values(), ids=NESTED.keys())
def test_a_message_may_have_500_levels_alone_or_in_a_batch(nested: Callable[[int], bytes]) -> None:
    """The same number whatever the message stands in, and however much of the stack is in use."""
    deepest, too_deep = nested(MAX_DEPTH), nested(MAX_DEPTH + 2)
    assert MAX_DEPTH == 500
    for body in (b"[" + deepest + b"]", b"[0," + deepest + b",{}]"):
        assert deepest in at_a_depth_of_the_stack(700, partial(split_body, body))
    with pytest.raises(Malformed, match="500 levels"):
        parse_messages(JSON, b"[" + too_deep + b"]")
    if not deepest.startswith(b"["):
        assert split(parse_messages(JSON, deepest)) == [deepest]
        with pytest.raises(Malformed, match="500 levels"):
            parse_messages(JSON, too_deep)


def split_body(body: bytes) -> list[bytes]:
    return split(parse_messages(JSON, body))


def at_a_depth_of_the_stack(depth: int, call: Callable[[], Any]) -> Any:
    return call() if depth == 0 else at_a_depth_of_the_stack(depth - 1, call)


@pytest.mark.parametrize("body", [b"[" * 10_000, b"[" * 1_000_000, b'{"a":' * 10_000, b'[{"a":' * 10_000])
def test_a_very_deep_text_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed, match="500 levels"):
        parse_messages(JSON, body)


@pytest.mark.parametrize("size", [10, 1_999, 2_000, 2_001, 50_000])
@pytest.mark.parametrize("part", [b"\\n", b"\\u00e9", b"a\\\\"])
def test_a_string_may_have_any_number_of_escapes(size: int, part: bytes) -> None:
    """Strings of very many escapes are scanned in steps."""
    text = b'"' + part * size + b'"'
    assert split(parse_messages(JSON, b"[1," + text + b',{"a":' + text + b"}]")) == [
        b"1",
        text,
        b'{"a":' + text + b"}",
    ]
    with pytest.raises(Malformed, match="Invalid JSON"):
        parse_messages(JSON, b"[1," + text[:-1] + b"\\x]")


@pytest.mark.parametrize("count", [1, 49, 50, 51, 99, 100, 101, 102, 200, 201, 202, 1000])
def test_arrays_and_objects_may_have_any_number_of_members(count: int) -> None:
    """The scanner matches runs of up to a fixed number: what is longer is the same JSON."""
    numbers = b"[" + b"1, " * (count - 1) + b"2]"
    members = b"{" + b'"a" : [1] ,' * count + b'"b":{"c":[]}}'
    texts = [numbers, members, b"[" + numbers + b"]"]
    assert split(parse_messages(JSON, b"[" + b",".join(texts) + b"]")) == texts
    for broken in (numbers[:-1] + b",]", members[:-1] + b",}", members[:-1] + b"]", numbers[:-2] + b"01]"):
        with pytest.raises(Malformed, match="Invalid JSON"):
            parse_messages(JSON, b"[0," + broken + b"]")


@pytest.mark.parametrize("digits", [17, 300])
def test_long_numbers_keep_their_text(digits: int) -> None:
    """Longer than a double is exact for, and never computed."""
    body = f"[{'7' * digits},0.{'3' * 5000},{'9' * 20}e-5]"
    assert split(parse_messages(JSON, body.encode())) == body.strip("[]").encode().split(b",")


def test_an_append_takes_250000_messages_and_refuses_one_more() -> None:
    """However small they are: with one more, the request is refused, not the storing of it."""
    body = b"[" + b"1," * (MAX_MESSAGES - 1) + b"1"
    assert len(parse_messages(JSON, body + b"]").lengths) == MAX_MESSAGES
    with pytest.raises(TooManyMessages):
        parse_messages(JSON, body + b",1]")


@given(st.binary(max_size=40))
def test_any_bytes_are_json_or_malformed(body: bytes) -> None:
    check_against_reference(body)


@given(
    VALUES,
    st.integers(min_value=0),
    st.sampled_from(["", *'[]{}:,"\\0eE.-+ \n\x01', "\\ud800", "NaN", "\ufeff"]),
)
def test_json_with_one_character_changed_is_parsed_or_malformed(text: str, position: int, put: str) -> None:
    """One place broken, or not: accepted exactly when another parser, told to be strict, does."""
    at = position % (len(text) + 1)
    check_against_reference((text[:at] + put + text[at + 1 :]).encode())


def check_against_reference(body: bytes) -> None:
    if not body:
        return
    try:
        expected = reference_parse(body)
    except ValueError:
        with pytest.raises(Malformed):
            parse_messages(JSON, body)
    else:
        values = [json.loads(message) for message in split(parse_messages(JSON, body))]
        assert values == (expected if isinstance(expected, list) else [expected])


def reference_parse(body: bytes) -> Any:
    """Python's own parser without its extensions. Raises ValueError."""
    value = json.loads(body.decode(), parse_constant=refuse_constant, object_pairs_hook=check_pairs)
    check_strictly(value)
    return value


def check_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Before a repeated name hides an earlier one."""
    check_strictly(pairs)
    return dict(pairs)


def check_strictly(value: Any) -> None:
    if "Infinity" in json.dumps(value):
        raise ValueError("beyond the range of a double")


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# --- everything else ----------------------------------------------------------------


@given(st.binary(min_size=1), st.sampled_from(OTHERS))
def test_a_body_of_any_other_type_is_one_message_unchanged(body: bytes, content_type: Any) -> None:
    """One append, one message, and a read gives back the very bytes: NDJSON too."""
    messages = parse_messages(content_type, body)
    assert messages == Messages(body, (len(body),))
    assert render_body(content_type, messages.data) == body


@pytest.mark.parametrize("content_type", [JSON, *OTHERS], ids=lambda content_type: content_type.essence)
def test_an_empty_body_has_no_messages(content_type: Any) -> None:
    assert parse_messages(content_type, b"") == NOTHING
    assert render_body(content_type, b"") == (b"[]" if content_type is JSON else b"")
