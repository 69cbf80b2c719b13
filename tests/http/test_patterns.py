"""The work of each pattern that meets a request's text grows no faster than the text, in seconds of this
thread's CPU: a quadratic pattern takes 30 times its bound, a linear one a tenth."""

import ast
import importlib
import inspect
import pkgutil
import re
import time
from collections.abc import Iterator
from functools import cache
from itertools import product
from types import ModuleType
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidemark.http
import tidemark.protocol

METHODS: Final = {"match", "fullmatch", "search", "sub", "subn", "findall", "finditer"}
#: A pattern that is exponential fails at the first ones; at a later one it would not end.
LENGTHS: Final = (*range(16, 64, 2), 100, 400, 20_000)

Use = tuple[str, re.Pattern[Any], str]


def modules() -> Iterator[ModuleType]:
    for package in (tidemark.http, tidemark.protocol):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(found.name)


def uses(module: ModuleType) -> Iterator[Use]:
    """The calls of a pattern's method, as they stand in the module. A pattern that is called by no name of
    the module's counts as one that goes through the text."""
    called = set()
    for call in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in METHODS:
            place = f"{module.__name__} {ast.unparse(call)}"
            for pattern in patterns_in(call, vars(module)):
                called.add(pattern)
                yield place, pattern, call.func.attr
    for pattern in dict.fromkeys(patterns_of(vars(module).values())):
        if pattern not in called:
            yield f"{module.__name__} {pattern.pattern!r}", pattern, "search"


def patterns_in(call: ast.Call, names: dict[str, Any]) -> Iterator[re.Pattern[Any]]:
    assert isinstance(call.func, ast.Attribute)
    if ast.unparse(call.func.value) == "re":
        yield re.compile(eval(ast.unparse(call.args[0]), names))
        return
    for part in ast.walk(call.func.value):
        if isinstance(part, ast.Name | ast.Attribute):
            try:
                value = eval(ast.unparse(part), names)
            except (NameError, AttributeError):
                continue  # A name of the function's own.
            if isinstance(value, re.Pattern):
                yield value


def patterns_of(values: Any) -> Iterator[re.Pattern[Any]]:
    for value in values:
        if isinstance(value, re.Pattern):
            yield value
        elif isinstance(value, tuple | list):
            yield from patterns_of(value)


USES: Final = [use for module in modules() for use in uses(module)]
assert len(USES) >= 15, "not all patterns are looked at"


def seconds(pattern: re.Pattern[Any], method: str, text: Any) -> float:
    call = getattr(pattern, method)
    arguments = (text[:0], text) if method in {"sub", "subn"} else (text,)
    began = time.thread_time()
    result = call(*arguments)
    if method == "finditer":
        list(result)
    return time.thread_time() - began


@cache
def seconds_of_a_character() -> float:
    return min(seconds(re.compile("(?:[a-z]|[0-9])*"), "match", "a" * 100_000) for _ in range(9)) / 100_000


def grows_too_fast(pattern: re.Pattern[Any], method: str, match: Any) -> Any:
    """The text that takes too long, or None: a beginning of the match, a piece of it again and again, and an
    end that may not match."""
    pieces = {match[at : at + size] for at in range(len(match)) for size in (1, 2)} | {match[-8:]}
    beginnings = {match[:0], *(match[:at] for at in range(1, len(match), 1 + len(match) // 4))}
    end = b"\0" if isinstance(match, bytes) else "\0"
    for beginning, piece, length in product(beginnings, pieces - {match[:0]}, LENGTHS):
        text = beginning + piece * (length // len(piece)) + end
        bound = 0.010 + 100 * seconds_of_a_character() * len(text)
        if all(seconds(pattern, method, text) > bound for _ in range(3)):
            return text
    return None


@pytest.mark.parametrize(("pattern", "method"), [use[1:] for use in USES], ids=[use[0] for use in USES])
def test_the_work_grows_as_the_text(pattern: re.Pattern[Any], method: str) -> None:
    @settings(max_examples=10, deadline=None, derandomize=True, database=None)
    @given(st.from_regex(pattern))
    def check(match: Any) -> None:
        assert grows_too_fast(pattern, method, match[:40]) is None

    check()


@pytest.mark.parametrize(
    ("pattern", "method", "match"),
    [
        (r'"(?:[^"\\]|\\.)*"', "sub", r'"\""'),  # Each quote is a beginning, and none has an end.
        (r"(a+)+b", "fullmatch", "aab"),
        (r"(a|ab|b)*c", "fullmatch", "abc"),
    ],
)
def test_a_pattern_that_goes_back_again_and_again_is_found(pattern: str, method: str, match: str) -> None:
    assert grows_too_fast(re.compile(pattern), method, match) is not None
