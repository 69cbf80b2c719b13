"""Counts the steps of a regular expression, as the backtracking matcher of `re` takes them: a measure of its
work without a clock."""

import importlib
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

_parser: Final[Any] = importlib.import_module("re._parser")
_compiler: Final[Any] = importlib.import_module("re._compiler")

MOST_STEPS: Final = 100_000


class TooManySteps(Exception):
    """The count has passed MOST_STEPS."""


class Matcher:
    """Of a pattern of bytes each byte counts as the character of its number."""

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        source, self._flags = pattern.pattern, pattern.flags
        if isinstance(source, bytes):
            source, self._flags = source.decode("latin-1"), pattern.flags | re.ASCII
        self._parsed = _parser.parse(source, self._flags)
        self._text = ""
        self._steps = 0
        #: The characters that a node takes, by the node's id.
        self._members_of: dict[int, frozenset[str]] = {}

    def steps(self, text: str, method: str) -> int:
        """Raises TooManySteps."""
        self._text, self._steps, at = text, 0, 0
        while at <= len(text):
            ends = self._ends(list(self._parsed), at)
            end = next((end for end in ends if method != "fullmatch" or end == len(text)), None)
            if method in {"match", "fullmatch"}:
                break
            at = at + 1 if end is None else max(end, at + 1)
        return self._steps

    def alphabet(self) -> list[str]:
        """One character for each combination of the pattern's character classes, and one of none."""
        classes = [self._members(node) for node in _characters(self._parsed)]
        return list({tuple(char in each for each in classes): char for char in map(chr, range(256))}.values())

    def shortest(self) -> str:
        """A text that matches, or nearly: conditions that take no character are left out."""
        return self._shortest(self._parsed)

    def _shortest(self, nodes: Any) -> str:
        text = ""
        for node in nodes:
            op, argument = str(node[0]), node[1]
            if op.endswith("_REPEAT"):
                text += self._shortest(argument[2]) * argument[0]
            elif op == "BRANCH":
                text += min(map(self._shortest, argument[1]), key=len)
            elif op in {"SUBPATTERN", "ATOMIC_GROUP"}:
                text += self._shortest(argument[-1] if op == "SUBPATTERN" else argument)
            elif op not in {"AT", "ASSERT", "ASSERT_NOT"}:
                text += max(self._members(node))
        return text

    def _ends(self, nodes: list[Any], at: int) -> Iterator[int]:
        """Where a match that begins at `at` may end, in the order in which they are tried."""
        if not nodes:
            yield at
            return
        for end in self._ends_of_one(nodes[0], at):
            yield from self._ends(nodes[1:], end)

    def _ends_of_one(self, node: Any, at: int) -> Iterator[int]:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise TooManySteps
        op, argument = str(node[0]), node[1]
        parts = _parts(node)
        if op in {"BRANCH", "SUBPATTERN"}:
            for part in parts:
                yield from self._ends(list(part), at)
        elif op == "ATOMIC_GROUP":
            yield from _first(self._ends(list(argument), at))
        elif op.endswith("_REPEAT"):
            least, most, repeated = argument
            yield from self._repeat(least, most, repeated, at, is_possessive=op.startswith("POSSESSIVE"))
        elif parts or op == "AT":
            yield from [at] * self._holds(op, argument, at)
        elif self._text[at : at + 1] in self._members(node):
            yield at + 1

    def _holds(self, op: str, argument: Any, at: int) -> bool:
        """Whether a condition that takes no character is met: a beginning or end, or a look ahead."""
        if op == "AT":
            return (at == 0) if "BEGINNING" in str(argument) else (at == len(self._text))
        return (next(self._ends(list(argument[1]), at), None) is not None) == (op == "ASSERT")

    def _repeat(
        self, least: int, most: int, nodes: Any, at: int, *, is_possessive: bool = False
    ) -> Iterator[int]:
        """Greedy. What a lazy one tries in another order takes as many steps where nothing matches."""
        ends = self._ends(list(nodes), at) if most else iter(())
        for end in _first(ends) if is_possessive else ends:
            if end > at:
                yield from self._repeat(max(0, least - 1), most - 1, nodes, end, is_possessive=is_possessive)
        if least == 0:
            yield at

    def _members(self, node: Any) -> frozenset[str]:
        if id(node) not in self._members_of:
            one = _compiler.compile(_parser.SubPattern(self._parsed.state, [node]), self._flags)
            characters = map(chr, range(256))
            self._members_of[id(node)] = frozenset(filter(one.fullmatch, characters))
        return self._members_of[id(node)]


def _parts(node: Any) -> list[Any]:
    """The sequences of nodes in a node; none in one that takes a character."""
    op, argument = str(node[0]), node[1]
    if op.endswith("_REPEAT"):
        return [argument[2]]
    if op == "BRANCH":
        return list(argument[1])
    if op == "ATOMIC_GROUP":
        return [argument]
    return [argument[-1]] if op in {"SUBPATTERN", "ASSERT", "ASSERT_NOT"} else []


def _characters(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        parts = _parts(node)
        for part in parts:
            yield from _characters(part)
        if not parts and str(node[0]) != "AT":
            yield node


def _first(ends: Iterator[int]) -> Iterator[int]:
    return islice(ends, 1)
