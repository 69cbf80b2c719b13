"""The work of each pattern that meets a request's text grows no faster than the text."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from itertools import product
from types import ModuleType
from typing import Any, Final

import pytest

import tidemark.http
import tidemark.protocol
from tests.protocol.backtracking import Matcher, TooManySteps

METHODS: Final = {"match", "fullmatch", "search", "sub", "subn", "findall", "finditer"}
REPEATS: Final = 24
#: Fewer steps a character are no danger, however they grow.
FEW: Final = 8

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


def texts(matcher: Matcher, repeats: int) -> Iterator[str]:
    """A beginning of a match, then a word again and again, then an end that may not match."""
    match, letters = matcher.shortest(), sorted(matcher.alphabet())
    words = {match[-8:], *letters}
    if len(letters) <= 8:
        words |= set(map("".join, product(letters, repeat=2)))
    beginnings = {"", *(match[: len(match) - left] for left in range(min(8, len(match)))), *letters}
    for beginning, word, end in product(sorted(beginnings), sorted(words), ("", "\0")):
        yield beginning + word * repeats + end


def grows_too_fast(matcher: Matcher, method: str) -> str | None:
    for short, long in zip(texts(matcher, REPEATS), texts(matcher, 2 * REPEATS), strict=True):
        try:
            few, many = matcher.steps(short, method), matcher.steps(long, method)
        except TooManySteps:
            return long
        if many > max(3 * few, FEW * len(long)):
            return long
    return None


@pytest.mark.parametrize(("pattern", "method"), [use[1:] for use in USES], ids=[use[0] for use in USES])
def test_twice_the_text_takes_twice_the_steps(pattern: re.Pattern[Any], method: str) -> None:
    assert grows_too_fast(Matcher(pattern), method) is None


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r'"(?:[^"\\]|\\.)*"', "sub"),  # Each quote is a beginning, and none has an end.
        (r"(a+)+b", "fullmatch"),
        (r"(a|ab|b)*c", "fullmatch"),
    ],
)
def test_a_pattern_that_goes_back_again_and_again_is_found(pattern: str, method: str) -> None:
    assert grows_too_fast(Matcher(re.compile(pattern)), method) is not None


def test_all_patterns_are_looked_at() -> None:
    assert len(USES) >= 15
