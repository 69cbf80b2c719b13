"""DynamoDB's expressions: conditions, updates and projections, as far as the log's table uses them.

What is not understood raises UnknownExpression, so that a simulation never passes over it in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

Value = dict[str, Any]
"""One attribute as DynamoDB writes it: `{"S": "…"}`, `{"N": "1"}`, `{"B": "…"}`, `{"BOOL": true}`."""

Item = dict[str, Value]
Values = Mapping[str, Value]
Names = Mapping[str, str]
Check = Callable[[Item, Values, Names], bool]
Operand = Callable[[Item, Values, Names], Value | None]

_TOKEN: Final = re.compile(r"\s*(<>|<=|>=|[=<>(),+-]|[:#]?[A-Za-z_][A-Za-z0-9_]*)")
_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


class UnknownExpression(Exception):
    """The simulation does not know this form."""


class _Tokens:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        position = 0
        while text[position:].strip():
            found = _TOKEN.match(text, position)
            if found is None:
                raise UnknownExpression(text)
            self._tokens.append(found[1])
            position = found.end()

    @property
    def next(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def take(self, *wanted: str) -> str:
        """The next token, which must be one of these, if any are named."""
        if not self._tokens or (wanted and self.next.upper() not in wanted):
            raise UnknownExpression(self._text)
        return self._tokens.pop(0)

    def taken(self, wanted: str) -> bool:
        """Whether the next token was this one; then it is used up."""
        if self.next.upper() != wanted:
            return False
        self._tokens.pop(0)
        return True

    def end(self) -> None:
        if self._tokens:
            raise UnknownExpression(self._text)


# --- conditions ---------------------------------------------------------------------


@lru_cache(maxsize=1000)
def parse_condition(text: str) -> Check:
    tokens = _Tokens(text)
    check = _either(tokens)
    tokens.end()
    return check


def _either(tokens: _Tokens) -> Check:
    checks = [_both(tokens)]
    while tokens.taken("OR"):
        checks.append(_both(tokens))
    return lambda item, values, names: any(check(item, values, names) for check in checks)


def _both(tokens: _Tokens) -> Check:
    checks = [_one(tokens)]
    while tokens.taken("AND"):
        checks.append(_one(tokens))
    return lambda item, values, names: all(check(item, values, names) for check in checks)


def _one(tokens: _Tokens) -> Check:
    if tokens.taken("NOT"):
        negated = _one(tokens)
        return lambda item, values, names: not negated(item, values, names)
    if tokens.taken("("):
        inner = _either(tokens)
        tokens.take(")")
        return inner
    if tokens.next.lower() in {"attribute_exists", "attribute_not_exists"}:
        wanted = tokens.take().lower() == "attribute_exists"
        tokens.take("(")
        operand = _operand(tokens.take())
        tokens.take(")")
        return lambda item, values, names: (operand(item, values, names) is not None) is wanted
    if tokens.next.lower() == "begins_with":
        return _begins_with(tokens)
    return _comparison(tokens)


def _begins_with(tokens: _Tokens) -> Check:
    tokens.take()
    tokens.take("(")
    operand = _operand(tokens.take())
    tokens.take(",")
    prefix = _operand(tokens.take())
    tokens.take(")")

    def check(item: Item, values: Values, names: Names) -> bool:
        found, wanted = operand(item, values, names), prefix(item, values, names)
        return found is not None and wanted is not None and found.get("S", "").startswith(wanted["S"])

    return check


def _comparison(tokens: _Tokens) -> Check:
    left = _operand(tokens.take())
    comparator = tokens.take("=", "<>", "<", "<=", ">", ">=", "BETWEEN", "IN").upper()
    if comparator == "BETWEEN":
        low = _operand(tokens.take())
        tokens.take("AND")
        high = _operand(tokens.take())
        return lambda item, values, names: (
            _compare(">=", left(item, values, names), low(item, values, names))
            and _compare("<=", left(item, values, names), high(item, values, names))
        )
    if comparator == "IN":
        options = _list(tokens)
        return lambda item, values, names: any(
            _compare("=", left(item, values, names), option(item, values, names)) for option in options
        )
    right = _operand(tokens.take())
    return lambda item, values, names: _compare(
        comparator, left(item, values, names), right(item, values, names)
    )


def _list(tokens: _Tokens) -> list[Operand]:
    tokens.take("(")
    options = [_operand(tokens.take())]
    while tokens.taken(","):
        options.append(_operand(tokens.take()))
    tokens.take(")")
    return options


def _operand(token: str) -> Operand:
    if token.startswith(":"):
        return lambda _item, values, _names: values[token]
    if token.startswith("#"):
        return lambda item, _values, names: item.get(names[token])
    return lambda item, _values, _names: item.get(token)


def _compare(comparator: str, one: Value | None, other: Value | None) -> bool:
    """An attribute that is not there equals nothing and compares with nothing; it is unequal to all."""
    if comparator == "=":
        return one is not None and other is not None and _same(one, other)
    if comparator == "<>":
        return one is None or other is None or not _same(one, other)
    if one is None or other is None or one.keys() != other.keys():
        return False
    [kind] = one
    if kind == "N":
        return _COMPARE[comparator](int(one["N"]), int(other["N"]))
    if kind == "S":
        return _COMPARE[comparator](one["S"].encode(), other["S"].encode())
    raise UnknownExpression(f"{comparator} of {kind}")


def _same(one: Value, other: Value) -> bool:
    if "N" in one and "N" in other:
        return int(one["N"]) == int(other["N"])
    return one == other


# --- updates ------------------------------------------------------------------------

Change = Callable[[Item, Item, Values, Names], None]
"""Writes into the new item what it reads from the old one."""


@lru_cache(maxsize=1000)
def parse_update(text: str) -> tuple[Change, ...]:
    tokens = _Tokens(text)
    changes: list[Change] = []
    while tokens.next:
        clause = tokens.take("SET", "REMOVE", "ADD").upper()
        parse = {"SET": _set, "REMOVE": _remove, "ADD": _add}[clause]
        changes.append(parse(tokens))
        while tokens.taken(","):
            changes.append(parse(tokens))
    return tuple(changes)


def _set(tokens: _Tokens) -> Change:
    target = tokens.take()
    tokens.take("=")
    value = _set_value(tokens)
    while tokens.next in {"+", "-"}:
        value = _sum(value, -1 if tokens.take() == "-" else 1, _set_value(tokens))

    def change(old: Item, new: Item, values: Values, names: Names) -> None:
        found = value(old, values, names)
        if found is None:
            raise KeyError(target)
        new[names.get(target, target)] = found

    return change


def _set_value(tokens: _Tokens) -> Operand:
    if tokens.next.lower() != "if_not_exists":
        return _operand(tokens.take())
    tokens.take()
    tokens.take("(")
    first = _operand(tokens.take())
    tokens.take(",")
    second = _operand(tokens.take())
    tokens.take(")")

    def value(item: Item, values: Values, names: Names) -> Value | None:
        found = first(item, values, names)
        return second(item, values, names) if found is None else found

    return value


def _sum(one: Operand, sign: int, other: Operand) -> Operand:
    def value(item: Item, values: Values, names: Names) -> Value | None:
        left, right = one(item, values, names), other(item, values, names)
        if left is None or right is None:
            return None
        return {"N": str(int(left["N"]) + sign * int(right["N"]))}

    return value


def _remove(tokens: _Tokens) -> Change:
    target = tokens.take()

    def change(_old: Item, new: Item, _values: Values, names: Names) -> None:
        new.pop(names.get(target, target), None)

    return change


def _add(tokens: _Tokens) -> Change:
    target, operand = tokens.take(), _operand(tokens.take())

    def change(old: Item, new: Item, values: Values, names: Names) -> None:
        name, more = names.get(target, target), operand(old, values, names)
        assert more is not None, "a value is named that is not there"
        before = old.get(name, {"N": "0"})
        new[name] = {"N": str(int(before["N"]) + int(more["N"]))}

    return change


# --- projections --------------------------------------------------------------------


def project(item: Item, expression: str | None, names: Names) -> Item:
    if expression is None:
        return item
    wanted = [names.get(name.strip(), name.strip()) for name in expression.split(",")]
    return {name: item[name] for name in wanted if name in item}
