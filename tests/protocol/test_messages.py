"""Messages: JSON kept byte for byte, and everything else too; and what a content type is."""

import json
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.processes import alone
from tidemark.protocol import messages as rules
from tidemark.protocol.errors import Malformed, TooManyMessages
from tidemark.protocol.json_text import MAX_DEPTH

JSON = rules.parse_content_type("application/json")
OTHERS = [
    rules.parse_content_type(header)
    for header in ("application/octet-stream", "text/plain", "application/ndjson", "application/vnd.api+json")
]


def split(body: bytes) -> list[bytes]:
    """The messages of a body of JSON, without the comma that each is stored with."""
    messages = rules.parse_messages(JSON, body)
    texts, start = [], 0
    for length in messages.lengths:
        text = messages.data[start : start + length]
        assert text.endswith(b",")
        texts.append(text[:-1])
        start += length
    assert start == len(messages.data), "the lengths add up to what is stored"
    return texts


# --- JSON: any text, in all the ways one value can be written ---------------------------

BLANK = st.text(alphabet=" \t\r\n", max_size=3)
NUMBER = st.from_regex(
    r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,2})?",
    fullmatch=True,
    alphabet="-+.eE0123456789",
)
PLAIN = st.characters(min_codepoint=0x20, exclude_characters='"\\', exclude_categories=["Cs"])
ESCAPE = st.sampled_from(
    ['\\"', "\\\\", "\\/", "\\b", "\\n", "\\u0000", "\\u00e9", "\\uD83D\\uDE00", "\\ud83c\\udf0a", "\\uDC00"]
)
STRING = st.lists(PLAIN | ESCAPE, max_size=12).map(lambda parts: '"' + "".join(parts) + '"')


def padded(*parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """With white space before each part and behind the last."""
    pieces = [piece for part in parts for piece in (BLANK, part)]
    return st.tuples(*pieces, BLANK).map("".join)


def containers_of(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Arrays and objects. Keys come in any order, and the same one may come twice."""
    arrays = st.lists(padded(values), max_size=4).map(lambda items: f"[{','.join(items) or ' '}]")
    members = st.lists(padded(STRING, st.just(":"), values), max_size=4)
    return arrays | members.map(lambda items: f"{{{','.join(items) or ' '}}}")


LITERAL = st.sampled_from(["true", "false", "null"])
VALUES = st.recursive(NUMBER | STRING | LITERAL, containers_of, max_leaves=12)

#: What stands beside a value that goes deeper. Brackets and quotes in strings are no structure.
BESIDE = ["1", '"]}[{"', '"\\"}"', "[]", "{}", "[1,2]", '{"a":[]}', "[[[]]]", '"\\\\"', "null", "-0.5e3"]
NAMES = ['""', '"a"', '"{\\"["', '"]"', '"\\u007d"', '"' + "n" * 3000 + '"']


@st.composite
def nested(draw: st.DrawFn) -> str:
    """A value of up to 120 levels, with white space and other values before and behind each."""
    levels = draw(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 2)), max_size=120))
    blanks, besides, names = (st.sampled_from(of) for of in (["", "", " ", "\n\t"], BESIDE, NAMES))
    text = draw(besides)
    for is_object, before, behind in levels:
        values = [draw(besides) for _ in range(before)] + [text] + [draw(besides) for _ in range(behind)]
        if is_object:
            values = [draw(names) + draw(blanks) + ":" + draw(blanks) + value for value in values]
        blank = draw(blanks)
        text = "{["[not is_object] + blank + f"{blank},{blank}".join(values) + blank + "}]"[not is_object]
    return text


@given(padded(VALUES))
def test_one_value_is_one_message(body: str) -> None:
    """Key order, duplicate keys, number text, escapes and white space inside: as sent."""
    messages, text = split(body.encode()), body.strip(" \t\r\n")
    if text.startswith("["):
        assert [json.loads(message) for message in messages] == json.loads(text)
    else:
        assert messages == [text.encode()]


@given(st.lists(st.one_of(VALUES, VALUES, nested()), max_size=4), BLANK, st.data())
def test_an_array_is_flattened_by_one_level(elements: list[str], blank: str, data: st.DataObject) -> None:
    body = f"{blank}[{','.join(blank + element + blank for element in elements) or blank}]{blank}".encode()
    assert split(body) == [element.encode() for element in elements]
    messages = rules.parse_messages(JSON, body)
    first = data.draw(st.integers(0, len(elements)))
    last = data.draw(st.integers(first, len(elements)))
    start, end = sum(messages.lengths[:first]), sum(messages.lengths[:last])
    assert rules.render_body(JSON, messages.data[start:end]).decode() == f"[{','.join(elements[first:last])}]"


@given(st.binary(min_size=1, max_size=40))
def test_any_bytes_are_json_or_malformed(body: bytes) -> None:
    check_against_reference(body)


@given(
    VALUES | nested(),
    st.booleans(),
    st.integers(0),
    st.sampled_from(
        ["", *'[]{}:,"\\0eE.-+ \n\x01', "\\ud800", "NaN", "\ufeff", "[1,]", "{,}", '{"a"}', "[1}"]
    ),
)
def test_changed_json_is_as_strict_parsers_say(text: str, is_in_array: bool, position: int, put: str) -> None:
    at = position % (len(text) + 1)
    changed = text[:at] + put + text[at + 1 :]
    body = f"[{changed}]" if is_in_array else changed
    if body:
        check_against_reference(body.encode())


def check_against_reference(body: bytes) -> None:
    try:
        expected = reference_parse(body)
    except ValueError:
        with pytest.raises(Malformed):
            rules.parse_messages(JSON, body)
    else:
        texts = reference_split(body.decode())
        assert split(body) == [text.encode() for text in texts]
        assert [*map(json.loads, texts)] == (expected if isinstance(expected, list) else [expected])


def reference_parse(body: bytes) -> Any:
    """Python's own parser without its extensions. Raises ValueError."""
    value = json.loads(body.decode(), parse_constant=refuse_constant, object_pairs_hook=check_pairs)
    check_strictly(value)
    return value


def reference_split(text: str) -> list[str]:
    """The elements of a valid array, or the one value, as they stand in the text."""
    text = text.strip(" \t\r\n")
    if not text.startswith("["):
        return [text]
    elements, at = [], 1
    while at < len(text) - 1:
        at += len(text[at:]) - len(text[at:].lstrip(" \t\r\n,"))
        if at < len(text) - 1:
            start, (_, at) = at, json.JSONDecoder().raw_decode(text, at)
            elements.append(text[start:at])
    return elements


def check_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Before a repeated name hides an earlier one."""
    check_strictly(pairs)
    return dict(pairs)


def check_strictly(value: Any) -> None:
    if "Infinity" in json.dumps(value):
        raise ValueError("beyond the range of a double")


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# --- JSON: single rules -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # the examples of §9.1.2
        ('{"event": "created"}', ['{"event": "created"}']),
        ('[{"event": "a"}, {"event": "b"}]', ['{"event": "a"}', '{"event": "b"}']),
        ("[[1,2], [3,4]]", ["[1,2]", "[3,4]"]),
        ("[[[1,2,3]]]", ["[[1,2,3]]"]),
        # nothing is a value too
        (" [ \n ] ", []),
        ("[[]]", ["[]"]),
        ("null", ["null"]),
        ('""', ['""']),
        # what must not change
        ('{"b":1,"a":2,"b":3}', ['{"b":1,"a":2,"b":3}']),
        ("[1.0, 1, 1e0, 10E-1, -0, -0.0]", ["1.0", "1", "1e0", "10E-1", "-0", "-0.0"]),
        ('["\\u00e9", "é", "\\/", "/"]', ['"\\u00e9"', '"é"', '"\\/"', '"/"']),
        ('["a,b", "[", "]", "\\"", "\\\\"]', ['"a,b"', '"["', '"]"', '"\\""', '"\\\\"']),
        # white space around goes, inside stays
        ("\r\n\t { } \n", ["{ }"]),
        # numbers that are longer than a double is exact for, and never computed
        (f"[{'7' * 300},0.{'3' * 5000},{'9' * 20}e-5]", ["7" * 300, "0." + "3" * 5000, "9" * 20 + "e-5"]),
        # numbers that a double holds, though their form does not say so
        *((f"[1,{number}]", ["1", number]) for number in ("1.7976931348623157e308", "0e400", "-1e0000308")),
    ],
    ids=lambda value: str(value)[:40],
)
def test_json_messages_are_stored_as_they_were_sent(body: str, expected: list[str]) -> None:
    assert split(body.encode()) == [text.encode() for text in expected]
    for text in expected if body.startswith("[") else []:
        assert split(text.encode()) == [text.encode()] or text.startswith("[")


INVALID = (
    b" \n", b'{"a":', b"hello", b"1 2", b'{"a":1}{"b":2}', b'{"a":1}\n{"b":2}\n', b"[1,]", b"[,1]", b"[,]",
    b"{},", b'{"a":1,}', b"[1", b"1]", b"[1}", b"{'a':1}", b"{a:1}", b"{1:1}", b"[1/*x*/]", b"NaN",
    b'[{"a":NaN}]', b"[Infinity]", b"-Infinity", b"+1", b"01", b".5", b"5.", b"0x10", b"True", b'"\x01"',
    b'"a\nb"', b"\0", b"1\0", b'"\0"', b'"\\x41"', b'"\\u12"', b"\x0b1", "\u00a01".encode(),
    b"\xef\xbb\xbf[1]", '{"a":1}'.encode("utf-16"), b'"\xff"', b'[{"a":"\xc3\x28"}]', b'"\xc0\xaf"',
    '["é"]'.encode()[:-3] + b'"]', b'"\xed\xa0\x80"',
)  # fmt: skip


@pytest.mark.parametrize("body", INVALID)
def test_a_body_that_is_not_json_is_malformed(body: bytes) -> None:
    """400 and nothing else: no error of a parser's own, no recursion that ends the process."""
    with pytest.raises(Malformed, match="Invalid JSON"):
        rules.parse_messages(JSON, body)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('[{"a":{"b":{"c":[1,2,}]}}}]', "byte 21"),
        ('[{"a":{"b":{"c":{"d":1]}}}}]', "byte 22"),
        ('[{"a":{"b":{"c":{"d":}}}}}]', "byte 21"),
        ("[[[[[1,]]]]]", "byte 7"),
        ('[{"a":[{"b":[{"c":[1}]}]}]', "byte 20"),
        ('[{"a":{"b":{"c":{"d":1}}}', "the end"),
    ],
)
def test_an_error_names_the_place_however_deep_it_is(text: str, place: str) -> None:
    with pytest.raises(Malformed, match=f"at {place}$"):
        rules.parse_messages(JSON, text.encode())


@pytest.mark.parametrize(
    "text", ['"\\ud800"', '"\\udc00\\ud800"', '{"\\ud800":1}', '{"a":["\\ud83d"]}', '"\\\\ud800\\udfff"']
)
def test_a_lone_surrogate_escape_is_json_and_is_kept(text: str) -> None:
    """JavaScript's JSON.stringify writes it for a string that was cut inside an emoji."""
    assert split(text.encode()) == [text.encode()]
    batch = f'[1, {text}, [{text}], "after"]'.encode()
    assert split(batch) == [b"1", text.encode(), f"[{text}]".encode(), b'"after"']


@pytest.mark.parametrize(
    "number",
    [b"1e400", b"-1e400", b"1" * 10_000, b"17976931348623159" + b"0" * 292, b"1.8e308", b"1e" + b"9" * 30],
    ids=lambda number: number[:20].decode(),
)
@pytest.mark.parametrize("around", [b"%b", b"[%b]", b'[1,{"a":[%b]}]'])
def test_a_number_beyond_a_double_is_refused_not_called_invalid_json(number: bytes, around: bytes) -> None:
    """RFC 8259 §6 lets an implementation limit the range of numbers."""
    with pytest.raises(Malformed, match="beyond the range of a double") as refused:
        rules.parse_messages(JSON, around % number)
    assert "nvalid" not in str(refused.value)


NESTED: dict[str, Callable[[int], bytes]] = {
    "arrays": lambda depth: b"[" * depth + b"1" + b"]" * depth,
    "empty arrays": lambda depth: b"[" * depth + b"]" * depth,
    "objects": lambda depth: b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1),
    "both in turn": lambda depth: b'[{"a":' * (depth // 2) + b"0" + b"}]" * (depth // 2),
    "with values before": lambda depth: b'{"x":1,"a":' * (depth - 1) + b"[]" + b"}" * (depth - 1),
    "with values behind": lambda depth: b'{"":' * (depth - 1) + b"{}" + b',"":1}' * (depth - 1),
    "between others": lambda depth: b'{"x":[1],"a":' * (depth - 1) + b"[]" + b',"y":0}' * (depth - 1),
    "with empty arrays before": lambda depth: b"[[]," * (depth - 1) + b"[1]" + b"]" * (depth - 1),
}


@pytest.mark.parametrize("nest", NESTED.values(), ids=NESTED)
def test_a_message_may_have_500_levels_alone_or_in_a_batch(nest: Callable[[int], bytes]) -> None:
    """The same number whatever the message stands in, and however much of the stack is in use."""
    deepest, too_deep = nest(MAX_DEPTH), nest(MAX_DEPTH + 2)
    assert MAX_DEPTH == 500
    for body in (b"[" + deepest + b"]", b"[0," + deepest + b",{}]"):
        assert deepest in at_a_depth_of_the_stack(700, partial(split, body))
    alone = [] if deepest.startswith(b"[") else [too_deep]
    for body in (b"[" + too_deep + b"]", *alone, nest(10_000)):
        with pytest.raises(Malformed, match="500 levels"):
            rules.parse_messages(JSON, body)
    if alone:
        assert split(deepest) == [deepest]


def at_a_depth_of_the_stack(depth: int, call: Callable[[], Any]) -> Any:
    return call() if depth == 0 else at_a_depth_of_the_stack(depth - 1, call)


@pytest.mark.parametrize("nest", NESTED.values(), ids=NESTED)
def test_levels_and_faults_are_the_same_where_a_stack_is_in_use(nest: Callable[[int], bytes]) -> None:
    """msgspec alone raises RecursionError there, for any text of more than some 200 levels."""
    text = nest(MAX_DEPTH)
    lone = b'["\\ud83d",' + text + b', "\\"[,]" ]'
    broken = b"[" + b'"\xc3\xa9",' + text[:-1] + b"!]"
    with ThreadPoolExecutor(1) as thread:

        def parse(body: bytes) -> Any:
            return thread.submit(at_a_depth_of_the_stack, 800, partial(split, body)).result()

        assert parse(b"[1," + text + b"]") == [b"1", text]
        assert parse(lone) == [b'"\\ud83d"', text, b'"\\"[,]"']
        with pytest.raises(Malformed, match=f"^Invalid JSON.* at byte {broken.index(b'!')}$"):
            parse(broken)
        with pytest.raises(Malformed, match="500 levels"):
            parse(b"[" + nest(MAX_DEPTH + 2) + b"]")


@pytest.mark.parametrize("size", [1, 50_000])
@pytest.mark.parametrize("part", [b"\\n", b"\\u00e9", b"a\\\\"])
def test_a_string_may_have_any_number_of_escapes(size: int, part: bytes) -> None:
    text = b'"' + part * size + b'"'
    assert split(b"[1," + text + b',{"a":' + text + b"}]") == [b"1", text, b'{"a":' + text + b"}"]
    with pytest.raises(Malformed, match="Invalid JSON"):
        rules.parse_messages(JSON, b"[1," + text[:-1] + b"\\x]")


@pytest.mark.parametrize("count", [1, 49, 50, 51, 99, 100, 101, 499, 500, 501, 502, 1000])
def test_arrays_and_objects_may_have_any_number_of_members(count: int) -> None:
    """However many pieces a match may have: with more it is the same JSON."""
    numbers = b"[" + b"1, " * (count - 1) + b"2]"
    members = b"{" + b'"a" : [1] ,' * count + b'"b":{"c":[]}}'
    texts = [numbers, members, b"[" + numbers + b"]"]
    assert split(b"[" + b",".join(texts) + b"]") == texts
    for broken in (numbers[:-1] + b",]", members[:-1] + b",}", members[:-1] + b"]", numbers[:-2] + b"01]"):
        with pytest.raises(Malformed, match="Invalid JSON"):
            rules.parse_messages(JSON, b"[0," + broken + b"]")


def test_an_append_takes_250000_messages_and_refuses_one_more() -> None:
    body = b"[" + b"1," * (rules.MAX_MESSAGES - 1) + b"1"
    assert len(rules.parse_messages(JSON, body + b"]").lengths) == rules.MAX_MESSAGES
    with pytest.raises(TooManyMessages):
        rules.parse_messages(JSON, body + b",1]")


@pytest.mark.parametrize(
    "element",
    [b"[%b]" % b",".join([b"0"] * 300_000), b'"%b"' % (b'\\",' * 300_000), b'{"a":[{},[0,"],"],0]}'],
)
def test_commas_inside_of_messages_are_no_messages(element: bytes) -> None:
    texts = [element] * (1 if len(element) > 1000 else 100_000)
    assert split(b"[" + b",".join(texts) + b"]") == texts


def test_an_array_of_too_many_messages_takes_no_memory() -> None:
    """The largest body of the smallest messages: as objects they would take a hundred megabytes."""
    assert alone(_peak_of_too_many_messages) < 1024 * 1024


def _peak_of_too_many_messages() -> int:
    body = b"[" + b"0," * (2 * 1024 * 1024 - 2) + b"0]"
    tracemalloc.start()
    with pytest.raises(TooManyMessages):
        rules.parse_messages(JSON, body)
    return tracemalloc.get_traced_memory()[1]


# --- everything else ----------------------------------------------------------------


@given(st.binary(min_size=1), st.sampled_from(OTHERS))
def test_a_body_of_any_other_type_is_one_message_unchanged(body: bytes, content_type: Any) -> None:
    messages = rules.parse_messages(content_type, body)
    assert messages == rules.Messages(body, (len(body),))
    assert rules.render_body(content_type, messages.data) == body


def test_an_empty_body_has_no_messages() -> None:
    assert [rules.parse_messages(each, b"") for each in (JSON, *OTHERS)] == [rules.NOTHING] * 5
    assert [rules.render_body(content_type, b"") for content_type in (JSON, *OTHERS)] == [b"[]", *[b""] * 4]


# --- content types ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "essence"),
    [
        ("Application/JSON", "application/json"),
        ("application/json ;charset=utf-8", "application/json"),
        ("  text/plain  ", "text/plain"),
        ("text/plain\t;\tcharset=utf-8", "text/plain"),
        ("application/vnd.api+json", "application/vnd.api+json"),
        ('multipart/mixed; boundary="a b;c"', "multipart/mixed"),
        ("a/b;", "a/b"),
        ("!#$%&'*+.^_`|~-/x", "!#$%&'*+.^_`|~-/x"),
        ("a/" + "b" * (rules.MAX_LENGTH - 2), "a/" + "b" * 253),
    ],
)
def test_the_essence_is_type_and_subtype_in_lower_case(header: str, essence: str) -> None:
    parsed = rules.parse_content_type(header)
    assert (parsed.essence, parsed.value) == (essence, header.strip()), "the value is kept as it was sent"


NO_MEDIA_TYPE = (
    "", " ", "/", "text", "text/", "/plain", "text//plain", "text/plain/x", "text /plain", "text/ plain",
    "text/plain charset=utf-8", "text/plain, text/plain", "te(xt/plain", "text/pläin",
    "text/plain; charset=\u2026", "text/plain; a=\0", "text/plain; a=b\r\nX-Evil: 1", "text/plain; a=b\nx",
    "text/plain\n; a=b", ";charset=utf-8", "a/" + "b" * (rules.MAX_LENGTH - 1),
)  # fmt: skip


@pytest.mark.parametrize("header", NO_MEDIA_TYPE)
def test_a_header_that_is_no_media_type_is_malformed(header: str) -> None:
    """Among them what would break the header that a read answers with."""
    with pytest.raises(Malformed, match="Content type"):
        rules.parse_content_type(header)


@pytest.mark.parametrize(
    ("header", "is_json", "is_text"),
    [
        ("APPLICATION/JSON;charset=utf-8", True, True),
        ("application/jsonx", False, False),
        ("application/vnd.api+json", False, False),
        ("application/ndjson", False, False),  # neither text/* nor application/json: base64 (§5.8)
        ("TEXT/csv", False, True),
        ("text/event-stream", False, True),
        ("textual/plain", False, False),
        ("image/svg+xml", False, False),
    ],
)
def test_application_json_is_json_and_text_types_are_text(header: str, is_json: bool, is_text: bool) -> None:
    parsed = rules.parse_content_type(header)
    assert (parsed.is_json, parsed.is_text) == (is_json, is_text)


ACTIVE = (
    "TEXT/HTML", "application/xhtml+xml", "image/SVG+XML", "text/xml", "application/xml", "text/xsl",
    "multipart/x-mixed-replace", "message/rfc822", "application/pdf", "text/javascript",
    "application/x-shockwave-flash", "text/cache-manifest", "text/event-stream", "x/unknown",
)  # fmt: skip
INERT = (
    "text/plain", "text/csv", "text/markdown", "application/json", "application/ld+json",
    "application/x-ndjson", "image/png", "audio/mpeg", "video/mp4", "application/octet-stream",
)  # fmt: skip


@pytest.mark.parametrize("essence", ACTIVE + INERT)
def test_what_a_browser_might_run_is_active(essence: str) -> None:
    assert rules.parse_content_type(f"{essence}; charset=utf-8").is_active == (essence in ACTIVE)


def test_json_is_served_without_parameters() -> None:
    """§9.1.5: exactly `application/json`; any other type is served as it was given."""
    assert rules.parse_content_type("Application/JSON; charset=latin-1").served == "application/json"
    assert rules.parse_content_type("text/plain; charset=latin-1").served == "text/plain; charset=latin-1"
