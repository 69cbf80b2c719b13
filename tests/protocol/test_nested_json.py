"""JSON of many levels: accepted as by Python's own parser, and parsed in little time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.json_text import BLANK
from tidemark.protocol.errors import Malformed
from tidemark.protocol.json_text import split_array
from tidemark.protocol.messages import ContentType, parse_content_type, parse_messages

JSON: ContentType = parse_content_type("application/json")
#: What stands beside the value that goes deeper. Brackets and quotes in strings are no structure.
BESIDE = ["1", '"]}[{"', '"\\"}"', "[]", "{}", "[1,2]", '{"a":[]}', "[[[]]]", '"\\\\"', "null", "-0.5e3"]
NAMES = ['""', '"a"', '"{\\"["', '"]"', '"\\u007d"', '"' + "n" * 3000 + '"']


@st.composite
def nested(draw: st.DrawFn) -> str:
    """A value of up to 120 levels, with white space and other values before and behind each."""
    levels = draw(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 2)), max_size=120))
    blanks, besides, names = (
        st.sampled_from(["", "", " ", "\n\t"]),
        st.sampled_from(BESIDE),
        st.sampled_from(NAMES),
    )
    text = draw(besides)
    for is_object, before, behind in levels:
        values = [draw(besides) for _ in range(before)] + [text] + [draw(besides) for _ in range(behind)]
        if is_object:
            values = [draw(names) + draw(blanks) + ":" + draw(blanks) + value for value in values]
        blank = draw(blanks)
        text = "{["[not is_object] + blank + f"{blank},{blank}".join(values) + blank + "}]"[not is_object]
    return text


@given(nested(), nested(), BLANK)
def test_a_nested_value_is_kept_as_it_is(first: str, second: str, blank: str) -> None:
    body = f"{blank}[{first}{blank},{second}]".encode()
    assert [text.decode() for text in split_array(body)] == [first, second]


@given(nested(), st.integers(0), st.sampled_from(["", *'[]{}:,"\\0 ', "[1,]", "{,}", '{"a"}']))
def test_a_nested_value_with_one_place_changed_is_accepted_as_by_another_parser(
    text: str, position: int, put: str
) -> None:
    at = position % (len(text) + 1)
    body = f"[{text[:at]}{put}{text[at + 1 :]}]"
    try:
        expected = json.loads(body)
    except ValueError:
        with pytest.raises(Malformed):
            list(split_array(body.encode()))
    else:
        assert [json.loads(each) for each in split_array(body.encode())] == expected


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
        list(split_array(text.encode()))


def filling(nest: Callable[[int], bytes], depth: int, size: int) -> bytes:
    one = nest(depth)
    return b"[" + b",".join([one] * (size // (len(one) + 1))) + b"]"


DEEP: dict[str, Callable[[int], bytes]] = {
    "arrays": lambda depth: b"[" * depth + b"1" + b"]" * depth,
    "objects": lambda depth: b'{"":' * depth + b"1" + b"}" * depth,
    "both in turn": lambda depth: b'[{"":' * (depth // 2) + b"1" + b"}]" * (depth // 2),
    "with values before": lambda depth: b'{"":1,"":' * depth + b"1" + b"}" * depth,
    "with values behind": lambda depth: b'{"":' * depth + b"1" + b',"":1}' * depth,
    "with empty arrays before": lambda depth: b"[[]," * depth + b"1" + b"]" * depth,
}


@pytest.mark.parametrize("nest", DEEP.values(), ids=DEEP.keys())
def test_deep_json_takes_little_more_processor_time_than_flat_json(nest: Callable[[int], bytes]) -> None:
    """A ratio on one machine: flat objects of the same size take about as long as deep ones, which took eight
    times as long when each level was a step of the interpreter."""
    size = 1024 * 1024
    flat, deep = b"[" + b",".join([b'{"a":1}'] * (size // 8)) + b"]", filling(nest, 490, size)
    assert processor_seconds(deep) < 4 * processor_seconds(flat)


def processor_seconds(body: bytes) -> float:
    """The least of five: what other processes cost is in the others."""

    def once() -> float:
        began = time.thread_time()
        parse_messages(JSON, body)
        return time.thread_time() - began

    return min(once() for _ in range(5))
