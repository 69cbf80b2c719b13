"""Messages: JSON kept byte for byte, and everything else too."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.json_text import BLANK, VALUES, arrays
from tidemark.protocol.content_type import parse_content_type
from tidemark.protocol.errors import Malformed, TooManyMessages
from tidemark.protocol.messages import MAX_MESSAGES, NOTHING, Messages, parse_messages, render_body

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
    "lone high surrogate": b'"\\ud800"',
    "lone low surrogate": b'["\\udc00"]',
    "surrogates in the wrong order": b'"\\udc00\\ud800"',
    "lone surrogate as key": b'{"\\ud800":1}',
    "vertical tab": b"\x0b1",
    "no-break space": "\u00a01".encode(),
    "deep arrays": b"[" * 10_000 + b"]" * 10_000,
    "deep arrays, unclosed": b"[" * 10_000,
    "deep objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "deep mixture": b'[{"a":' * 10_000 + b"1" + b"}]" * 10_000,
    "very deep": b"[" * 1_000_000,
    # RFC 8259 §6 lets an implementation limit the range of numbers; no double holds these
    "beyond the range of a double": b"[1e400]",
    "ten thousand digits": b"1" * 10_000,
}


@pytest.mark.parametrize("body", INVALID.values(), ids=INVALID.keys())
def test_a_body_that_is_not_json_is_malformed(body: bytes) -> None:
    """400 and nothing else: no error of a parser's own, no recursion that ends the process."""
    with pytest.raises(Malformed, match="Invalid JSON"):
        parse_messages(JSON, body)


@pytest.mark.parametrize("depth", [1, 100, 300])
def test_json_nested_up_to_300_levels_is_kept(depth: int) -> None:
    body = b"[" * depth + b"]" * depth
    assert render_body(JSON, parse_messages(JSON, body).data) == body


@pytest.mark.parametrize("depth", [900, 980, 990, 995, 1000, 1010, 1020, 1023, 1024, 1025, 1100, 5000])
@pytest.mark.parametrize("pair", [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")], ids=["[", "{", "[{"])
def test_json_nested_near_the_parsers_limits_is_kept_whole_or_malformed(
    pair: tuple[bytes, bytes], depth: int
) -> None:
    """Where it is too deep for one parser or the other: kept whole or refused, and nothing else."""
    body = pair[0] * depth + b"1" + pair[1] * depth
    with suppress(Malformed):
        assert b",".join(split(parse_messages(JSON, body))) in {body, body[1:-1]}


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
    json.dumps(value, ensure_ascii=False).encode()  # refuses lone surrogates
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
