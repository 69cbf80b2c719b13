"""The control surface: FastAPI routers beside the data path, imported at their first request."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.authorization.ways import Asgi
from tests.support import World
from tidemark.http.app import create_app
from tidemark.http.backend import many_at_once
from tidemark.http.control_routers import ControlRouter
from tidemark.http.headers import METHODS
from tidemark.http.openapi import document as openapi
from tidemark.settings import Settings

EXAMPLE = (ControlRouter("tests.http.control_example", ("/v1/stream/__example/",)),)
LAMP = "/v1/stream/__example/lamps/desk"


@pytest.fixture
def ask(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asgi]:
    monkeypatch.setattr("tidemark.http.control_routers.ROUTERS", EXAMPLE)
    settings = Settings(world.table_name, world.bucket_name, sse_seconds=60)
    with asyncio.Runner() as runner:
        backend = many_at_once(world.process().stores, settings)
        yield Asgi(create_app(backend), runner)
        runner.run(backend.close())


def test_a_listed_router_answers_before_any_stream(ask: Asgi) -> None:
    read = ask("GET", LAMP)
    assert (read.status, json.loads(read.body)) == (200, {"watts": 60})
    put = ask("PUT", LAMP, {"Content-Type": "application/json"}, b'{"watts": 40}')
    assert (put.status, json.loads(put.body)) == (201, {"watts": 40})
    assert put.headers["access-control-allow-origin"] == "*"


def test_a_percent_encoded_path_reaches_the_same_route(ask: Asgi) -> None:
    assert ask("GET", LAMP.replace("__", "%5F%5F")).status == 200


def test_a_stream_name_that_only_begins_like_a_router_is_a_stream(ask: Asgi) -> None:
    assert ask("PUT", "/v1/stream/__example", {"Content-Type": "text/plain"}).status == 201
    assert ask("GET", "/v1/stream/__exampleless").status == 404


def test_a_body_that_the_model_refuses_gets_400_with_the_field(ask: Asgi) -> None:
    refused = ask("PUT", LAMP, {"Content-Type": "application/json"}, b'{"watts": "many"}')
    assert refused.status == 400
    assert refused.error.startswith("body.watts: ")
    assert ask("PUT", LAMP, {"Content-Type": "application/json"}, b"{").status == 400


def test_errors_have_the_form_of_all_other_errors(ask: Asgi) -> None:
    absent = ask("GET", LAMP.replace("desk", "absent"))
    assert (absent.status, absent.error) == (404, "Stream does not exist; create it with PUT")
    nothing = ask("GET", "/v1/stream/__example/chairs")
    assert (nothing.status, nothing.headers["cache-control"]) == (404, "no-store")
    assert "/v1/openapi.json" in nothing.error


def test_a_method_without_a_route_gets_405_with_the_allowed_methods(ask: Asgi) -> None:
    refused = ask("DELETE", LAMP)
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD, PUT, OPTIONS")
    assert "GET, HEAD, PUT, OPTIONS" in refused.error


def test_a_preflight_request_is_answered(ask: Asgi) -> None:
    answer = ask("OPTIONS", LAMP)
    assert answer.status == 204
    assert answer.headers["access-control-allow-methods"] == ", ".join(METHODS)


def test_the_routes_and_models_are_in_the_openapi_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.http.control_routers.ROUTERS", EXAMPLE)
    made = openapi.document.__wrapped__()
    assert set(made["paths"]["/v1/stream/__example/lamps/{name}"]) == {"get", "put"}
    assert made["paths"].keys() >= openapi.PATHS.keys()
    assert made["components"]["schemas"].keys() >= {"Error", "Lamp"}


PROBE = """
import json, sys
from tidemark.http.function import create_function_app
from tidemark.settings import Settings
import os
create_function_app(Settings.from_environment(os.environ))
print(json.dumps(sorted(sys.modules)))
"""


def test_the_data_path_imports_neither_fastapi_nor_botocore() -> None:
    """They are most of a cold start."""
    environment = {
        "PATH": os.environ["PATH"],
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "ALLOW_ANONYMOUS": "true",
    }
    ran = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(ran.stdout))
    assert "tidemark.http.app" in loaded
    assert loaded.isdisjoint({"fastapi", "pydantic", "botocore", "boto3", "tidemark.http.bucket_operations"})
