"""The published document against the code: neither may know what the other does not."""

import copy
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import schemathesis

from tests.http.published import openapi_document, operations
from tidemark.http.openapi import PARAMETERS
from tidemark.http.paths import Operations
from tidemark.protocol.errors import ProtocolError

DOCUMENT = openapi_document()
STREAM = DOCUMENT["paths"]["/v1/stream/{path}"]
METHODS = {"get", "head", "put", "post", "delete"}
DESCRIBED = [
    (method, operation)
    for path in DOCUMENT["paths"].values()
    for method, operation in path.items()
    if method != "parameters"
]


def test_it_is_what_the_specification_of_openapi_calls_a_document() -> None:
    """By its own schema (3.1), which knows whether a part is missing or misspelt."""
    schemathesis.openapi.from_dict(copy.deepcopy(DOCUMENT)).validate()
    broken = copy.deepcopy(DOCUMENT)
    del broken["paths"]["/v1/health"]["get"]["responses"]["200"]["description"]
    with pytest.raises(jsonschema_rs.ValidationError, match="description"):
        schemathesis.openapi.from_dict(broken).validate()


def test_every_operation_has_a_tag_that_the_document_explains_and_the_server_is_this_one() -> None:
    used = {tag for _, operation in DESCRIBED for tag in operation["tags"]}
    assert used == {tag["name"] for tag in DOCUMENT["tags"] if tag["description"]}
    assert [server["url"] for server in DOCUMENT["servers"]] == ["/"]


def objects_in(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        yield part
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from objects_in(inner)


def test_every_schema_is_one_and_its_example_fits() -> None:
    holders = [each for each in objects_in(DOCUMENT) if isinstance(each.get("schema"), dict)]
    found = [(each["schema"], each) for each in holders if "$ref" not in each["schema"]]
    assert len(found) > 30
    for schema, holder in found:
        validator = jsonschema_rs.Draft202012Validator(schema)
        for example in (schema.get("example"), holder.get("example"), schema.get("default")):
            assert example is None or validator.is_valid(example), holder


def test_generators_of_clients_can_take_every_operation() -> None:
    """They skip a body of any type where no type that they know is beside it, and a date-time in a header."""
    bodies = [each["content"] for each in objects_in(DOCUMENT["paths"]) if "content" in each]
    assert sum("*/*" in each for each in bodies) > 10
    assert all(each.keys() - {"*/*"} for each in bodies)
    sent = [each["schema"] for each in PARAMETERS.values() if each["in"] == "header"]
    assert all("format" not in each for each in sent)


def test_every_part_is_there_and_used() -> None:
    """Security schemes are named, not referred to."""
    wanted = {each["$ref"] for each in objects_in(DOCUMENT) if "$ref" in each}
    kept = {
        f"#/components/{kind}/{name}"
        for kind, parts in DOCUMENT["components"].items()
        if kind != "securitySchemes"
        for name in parts
    }
    assert wanted == kept


def test_every_route_finds_itself() -> None:
    names = {"path": "chat/42", "bucket": "agents", "stream": "run", "at": "0" * 16, "id": "mailer"}
    every = operations()
    application = Operations(every)
    for operation in every:
        path = operation.path.format(**names, file="a.js")
        scope = {"type": "http", "method": operation.method, "path": path, "raw_path": path.encode()}
        assert application.find(scope) is operation, path


def statuses_refused(kind: type[ProtocolError] = ProtocolError) -> set[int]:
    """The statuses of all errors."""
    return {kind.status}.union(*(statuses_refused(below) for below in kind.__subclasses__()))


def test_every_way_to_say_no_is_documented() -> None:
    unused: dict[str, set[int]] = {"put": {412}, "post": set()}
    for method in METHODS:
        documented = {int(status) for status in STREAM[method]["responses"]}
        missing = statuses_refused() - documented - {499}  # For a client that has hung up.
        assert missing <= unused.get(method, {409, 412, 413, 415}), method


def test_an_operation_says_what_it_takes() -> None:
    for method, operation in DESCRIBED:
        names = [name for requirement in operation["security"] for name in requirement]
        assert set(names) <= {"bearer"}, operation
        assert {} in operation["security"], "open servers need no token"
        assert operation["summary"], operation
        assert {"200", "201", "202", "204", "307"} & operation["responses"].keys(), (method, operation)
