"""The conditions of a filtered read: parsed, and met by messages."""

import pytest

from tests.protocol.test_messages import at_a_depth_of_the_stack
from tidemark.protocol.errors import Malformed
from tidemark.protocol.json_text import MAX_DEPTH
from tidemark.protocol.where import MAX_CONDITIONS, MAX_WHERE_BYTES, parse_filter

MESSAGE = (
    b'{"type":"order.paid","n":1,"big":9007199254740993,"yes":true,"none":null,"":{"":7},"a/b":{"~":"x"},'
    b'"list":[{"k":1},"two",[true,{"k":1.0}]],"01":"name","a:b":"\\u0061","half":"\\ud800x"}'
)

MET = [
    '/type:eq:"order.paid"', '/type:prefix:"order."', '/type:prefix:""', "/type:exists", "/n:eq:1",
    "/n:eq: 1.0 ", "/n:eq:1e0", "/yes:eq:true", "/big:eq:9007199254740993", "/none:eq:null", "/none:exists",
    "/n:in:[3,2,1]", "/list/0/k:eq:1", '/list:eq:[{"k":1.0},"two",[true,{"k":1}]]', "//:eq:7", "/:exists",
    '/list/2:in:[1,[true,{"k":1}]]', '/01:eq:"name"', ":exists", '/a~1b/~0:eq:"x"', '/a:b:eq:"a"',
    '/half:eq:"\\ud800x"',
]  # fmt: skip
NOT_MET = [
    '/type:eq:"order"', '/n:prefix:""', '/absent:prefix:""', '/n:eq:"1"', "/n:eq:true", "/yes:eq:1",
    "/n:in:[]", "/yes:in:[1,0]", "/n:in:[true]", "/big:eq:9007199254740992", "/absent:eq:null",
    "/absent:exists", "/n:in:[[1]]", "/list/00:exists", "/list/-:exists", "/list/3:exists",
    '/list:eq:[{"k":true},"two",[true,{"k":1}]]', '/list/2:eq:[{"k":1},true]', "/list/2/0/0:exists",
    ':eq:{"":1}', '/half:prefix:"x"', '/yes:eq:["bool",1]',
]  # fmt: skip


@pytest.mark.parametrize("condition", [*MET, *NOT_MET])
def test_a_condition_is_met_by_a_message(condition: str) -> None:
    assert parse_filter([condition]).make_rule()(MESSAGE) == (condition in MET)


def test_a_message_of_any_depth_is_compared() -> None:
    """At any depth of the stack of a thread that serves requests."""
    depth = MAX_DEPTH - 1
    rules = [parse_filter([each]).make_rule() for each in (":in:[[1],[[]]]", ":exists", "/0/0/0:eq:1")]
    message = b"[" * depth + b"]" * depth
    assert at_a_depth_of_the_stack(100, lambda: [rule(message) for rule in rules]) == [False, True, False]


@pytest.mark.parametrize(
    ("conditions", "says"),
    [
        (["type:eq:1"], "begin with / and have ~ only as ~0 or ~1 (RFC 6901); got 'type'"),
        (["/a~2:eq:1"], "got '/a~2'"),
        ([""], "must be one of eq, in, exists, prefix, as in /type:eq:\"order\"; got ''"),
        (["/a:is:1"], "got 'is'"),
        (["/a:eq"], "operator eq of where takes a JSON value, such as /type:eq:\"order\"; got ''"),
        (["/a:eq:order"], "got 'order'"),
        (["/a:eq:1e400"], "got '1e400'"),
        (["/a:in:1"], 'takes a JSON array, such as /type:in:["order","refund"]; got \'1\''),
        (["/a:prefix:1"], "takes a JSON string"),
        (["/a:exists:1"], "takes no value, as in /type:exists; got '1'"),
        (["/a:exists", "/b:exists:"], "takes no value"),
        (["/a:exists"] * (MAX_CONDITIONS + 1), "where may be given 10 times; it was given 11 times"),
        (["/é:exists", "/" + "x" * (MAX_WHERE_BYTES - 10)], "where may have 1000 bytes in all; it has 1001"),
    ],
)
def test_anything_else_is_refused_with_what_is_allowed(conditions: list[str], says: str) -> None:
    with pytest.raises(Malformed) as refused:
        parse_filter(conditions)
    assert says in refused.value.message
    assert len(refused.value.message) < 200
