"""Each operation of the service raises the errors that its union names (`service/__init__.py`), and no other.

The source says it: what a function raises, and what the functions raise that it names, but for what it
handles."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final, get_args

import pytest

from tidemark import service
from tidemark.protocol import errors

PACKAGE: Final = Path(service.__file__).parents[1]
ERRORS: Final = {name: each for name, each in vars(errors).items() if isinstance(each, type)}
MODULES: Final = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): ast.parse(path.read_text())
    for room in ("service", "log", "protocol")
    for path in (PACKAGE / room).rglob("*.py")
}
#: By module and name; methods by `.name`, and those of a class by its name too.
FUNCTIONS: Final[dict[tuple[str, str], list[ast.stmt]]] = defaultdict(list)
IMPORTED: Final[dict[tuple[str, str], str]] = {}


class Unqualified(ast.NodeTransformer):
    """`errors.Busy` becomes `Busy`, imported from `errors`."""

    def __init__(self, module: str) -> None:
        self.module, self.rooms = module, dict[str, str]()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        source = (node.module or "").removeprefix("tidemark.")
        for name in node.names:
            IMPORTED[self.module, name.name] = source
            if f"{source}.{name.name}" in MODULES:
                self.rooms[name.asname or name.name] = f"{source}.{name.name}"
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if (source := self.rooms.get(ast.unparse(node.value))) is None:
            return ast.Attribute(self.visit(node.value), node.attr, node.ctx)
        IMPORTED[self.module, node.attr] = source
        return ast.Name(node.attr, node.ctx)


for module, tree in MODULES.items():
    for node in Unqualified(module).visit(tree).body:
        if isinstance(node, ast.FunctionDef):
            FUNCTIONS[module, node.name] += node.body
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    FUNCTIONS[module, node.name] += method.body
                    FUNCTIONS[module, f".{method.name}"] += method.body


def raised_in(node: ast.AST, module: str, known: dict[tuple[str, str], set[str]]) -> set[str]:
    """`known` are the errors of each function, as far as they were found before."""

    def in_all(nodes: Iterable[ast.AST]) -> set[str]:
        return {error for each in nodes for error in raised_in(each, module, known)}

    own: set[str] = set()
    match node:
        case ast.Try():
            handled = [name for handler in node.handlers for name in handled_by(handler)]
            others = [*(part for handler in node.handlers for part in handler.body), *node.orelse]
            return without(in_all(node.body), handled) | in_all(others)
        case ast.With(items=[ast.withitem(ast.Call(ast.Name("suppress"), names))]):
            return without(in_all(node.body), map(ast.unparse, names))
        case ast.AnnAssign():
            return in_all([node.value] if node.value else [])
        case ast.Raise(ast.Name(name)) | ast.Call(ast.Name(name)) if name in ERRORS:
            own = {name}
        case ast.Name(name) if name not in ERRORS:
            own = known.get((IMPORTED.get((module, name), module), name), set())
        case ast.Attribute(ast.Name("self"), name):
            own = known.get((module, f".{name}"), set())
        case ast.Attribute(_, "check"):  # A rule of the protocol.
            own = known["protocol.caching", ".check"]
    return own | in_all(ast.iter_child_nodes(node))


def handled_by(handler: ast.ExceptHandler) -> Iterator[str]:
    """Not those that it raises again or keeps."""
    names = {each.id for part in handler.body for each in ast.walk(part) if isinstance(each, ast.Name)}
    raises_again = any(isinstance(each, ast.Raise) and each.exc is None for each in ast.walk(handler))
    if handler.type is not None and handler.name not in names and not raises_again:
        yield from re.findall(r"\w+", ast.unparse(handler.type))


def without(raised: Iterable[str], bases: Iterable[str]) -> set[str]:
    handled = tuple(ERRORS[name] for name in bases if name in ERRORS)
    return {name for name in raised if not issubclass(ERRORS[name], handled)}


@cache
def raised_by_function() -> dict[tuple[str, str], set[str]]:
    known: dict[tuple[str, str], set[str]] = {name: set() for name in FUNCTIONS}
    before = -1
    while before != (before := sum(map(len, known.values()))):
        for (module, name), body in FUNCTIONS.items():
            known[module, name] = {error for node in body for error in raised_in(node, module, known)}
    return known


@pytest.mark.parametrize("union", [name for name in vars(service) if name.endswith("Error")])
def test_an_operation_raises_what_its_union_names(union: str) -> None:
    operation = re.sub(r"(?<!^)(?=[A-Z])", "_", union.removesuffix("Error")).lower()
    named, storage = (
        {each.__name__ for each in get_args(union) or (union,)}
        for union in (getattr(service, union), service.OfStorage)
    )
    found = raised_by_function().items()
    raised = [each for (room, name), each in found if name == operation and room.startswith("service.")]
    assert len(raised) == 1
    assert without(raised[0], storage | named) == set()
    assert named == {
        name for name in named if any(issubclass(ERRORS[each], ERRORS[name]) for each in raised[0])
    }
