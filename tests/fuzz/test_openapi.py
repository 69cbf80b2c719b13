"""The published document against the code: neither may know what the other does not."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import jsonschema_rs
import pytest
import schemathesis

from tests.authorization.ways import WAYS, Way
from tests.support import make_world
from tidemark.http import bucket_routes, headers
from tidemark.http.app import create_app
from tidemark.http.backend import one_at_a_time
from tidemark.http.control_paths import SUBSCRIPTION_ROOTS
from tidemark.http.control_routers import ROUTERS
from tidemark.http.openapi.document import document, rendered
from tidemark.http.openapi.parts import HEADERS, PARAMETERS, statuses_refused
from tidemark.http.routes import OPERATIONS
from tidemark.http.subscriptions.routes import router as subscriptions_router
from tidemark.local.engines import LocalServices
from tidemark.protocol.bucket import Resource, parse_bucket_path
from tidemark.service.stores import connect
from tidemark.settings import Settings

DOCUMENT = document()
STREAM = DOCUMENT["paths"]["/v1/stream/{path}"]
METHODS = {"get", "head", "put", "post", "delete"}
DESCRIBED = [
    pytest.param(method, operation, id=operation["operationId"])
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
    explained = {tag["name"]: tag["description"] for tag in DOCUMENT["tags"]}
    used = {
        tag
        for item in DOCUMENT["paths"].values()
        for method, operation in item.items()
        if method != "parameters"
        for tag in operation["tags"]
    }
    assert used == explained.keys()
    assert all(explained.values())
    assert [server["url"] for server in DOCUMENT["servers"]] == ["/"]


def schemas(part: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every schema, and what it stands in."""
    if isinstance(part, dict):
        if isinstance(part.get("schema"), dict):
            yield part["schema"], part
        for inner in part.values():
            yield from schemas(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from schemas(inner)


def test_every_schema_is_one_and_its_example_fits() -> None:
    found = [each for each in schemas(DOCUMENT) if "$ref" not in each[0]]
    assert len(found) > 30
    for schema, holder in found:
        validator = jsonschema_rs.Draft202012Validator(schema)
        for example in (schema.get("example"), holder.get("example"), schema.get("default")):
            assert example is None or validator.is_valid(example), holder


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if "$ref" in part:
            yield part["$ref"]
        for inner in part.values():
            yield from references(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from references(inner)


def test_every_part_is_there_and_used() -> None:
    """Security schemes are named, not referred to."""
    wanted = set(references(DOCUMENT))
    kept = {
        f"#/components/{kind}/{name}"
        for kind, parts in DOCUMENT["components"].items()
        if kind != "securitySchemes"
        for name in parts
    }
    assert wanted == kept


def methods_of(path: str) -> set[str]:
    return {method.upper() for method in DOCUMENT["paths"][path] if method != "parameters"}


def test_a_stream_has_the_documented_operations() -> None:
    assert (
        methods_of("/v1/stream/{path}")
        == methods_of("/v1/streams/{path}")
        == methods_of("/{bucket}/{stream}")
        == set(OPERATIONS)
    )


PLACES = {
    Resource.BUCKET: "/{bucket}",
    Resource.LISTING: "/{bucket}/streams",
    Resource.STREAM: "/{bucket}/{stream}",
    Resource.LATEST_SNAPSHOT: "/{bucket}/{stream}/snapshot",
    Resource.SNAPSHOT: "/{bucket}/{stream}/snapshot/{at}",
    Resource.UPLOAD: "/{bucket}/{stream}/snapshot/{at}/upload",
    Resource.BOOTSTRAP: "/{bucket}/{stream}/bootstrap",
}


@pytest.mark.parametrize("resource", Resource)
def test_a_place_in_a_bucket_has_the_documented_operations(resource: Resource) -> None:
    path = PLACES[resource]
    assert methods_of(path) == set(bucket_routes.operations_at(resource))
    made = path.format(bucket="agents", stream="run", at="0" * 16)
    assert parse_bucket_path(made.removeprefix("/"), encoded=True).resource is resource


def test_every_route_is_documented(services: LocalServices) -> None:
    world = make_world(services)
    settings = Settings(world.table_name, world.bucket_name)
    app: Any = create_app(one_at_a_time(connect(settings), settings))
    while not hasattr(app, "routes"):
        app = app._app
    routes = {route.path.replace("{path:path}", "{path}") for route in app.routes}
    modules = [import_module(router.module) for router in ROUTERS]
    routes |= {route.path for module in modules for route in module.router.routes}
    below = SUBSCRIPTION_ROOTS[0].removesuffix("/")
    listed: list[Any] = list(subscriptions_router.routes)
    routes |= {below + route.path.replace(":path", "") for route in listed}
    subscriptions = {f"{root}{{path}}" for root in SUBSCRIPTION_ROOTS}
    assert routes - subscriptions - {"/{path:bucket_path}"} == set(DOCUMENT["paths"]) - set(PLACES.values())


def test_request_headers_are_those_that_browsers_may_send() -> None:
    sent = {name for name, part in PARAMETERS.items() if part["in"] == "header"}
    assert sent | {"Authorization", "Content-Type"} == set(headers._REQUEST_HEADERS)


def test_answer_headers_are_those_that_browsers_may_read() -> None:
    """But for those that every script may read, or that are a matter of caches alone."""
    assert set(HEADERS) - {"Cache-Control", "Vary"} == set(headers._RESPONSE_HEADERS)


def test_every_way_to_say_no_is_documented() -> None:
    unused: dict[str, set[int]] = {"put": {412}, "post": set()}
    for method in METHODS:
        documented = {int(status) for status in STREAM[method]["responses"]}
        missing = statuses_refused() - documented - {499}  # For a client that has hung up.
        assert missing <= unused.get(method, {409, 412, 413, 415}), method


@pytest.mark.parametrize(("method", "operation"), DESCRIBED)
def test_an_operation_says_what_it_takes(method: str, operation: dict[str, Any]) -> None:
    """A right for each, but for what is open to everybody."""
    names = [name for requirement in operation["security"] for name in requirement]
    assert set(names) <= {"bearer"}
    assert {} in operation["security"], "open servers need no token"
    assert operation["summary"]
    assert {"200", "201", "202", "204", "307"} & operation["responses"].keys(), method


@pytest.fixture(params=list(WAYS))
def way(
    request: pytest.FixtureRequest, services: LocalServices, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Way]:
    with WAYS[request.param](Settings.from_environment(os.environ)) as opened:
        yield opened


def test_it_is_served_on_every_way_in(way: Way) -> None:
    answer = way("GET", "/v1/openapi.json")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.body == rendered()
    assert json.loads(answer.body)["openapi"].startswith("3.1")
