"""The shims by themselves, without an emulator: what they hand on, and that they fail loudly."""

from __future__ import annotations

import asyncio
import io
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ministack", reason="ministack is not installed")

from tests.emulated.shims import actions, address, api_body, layer, transport
from tests.emulated.shims.names import replace

URI = "arn:aws:apigateway:us-east-1:lambda:path/2015-03-31/functions/f/invocations"
DECLARED = {"type": "aws_proxy", "httpMethod": "POST", "payloadFormatVersion": "2.0", "uri": URI}


def test_an_api_body_becomes_routes_by_their_keys() -> None:
    """As API Gateway names them: a method and a path, ANY, or $default."""
    operation = {api_body.INTEGRATION: DECLARED}
    body = {
        "paths": {
            "/v1/stream/{proxy+}": {"get": operation, "put": operation},
            "/any": {api_body.ANY_METHOD: operation},
            "$default": {api_body.ANY_METHOD: operation},
        }
    }
    keys = [key for key, _ in api_body.operations(body)]
    assert keys == ["GET /v1/stream/{proxy+}", "PUT /v1/stream/{proxy+}", "ANY /any", "$default"]


def test_an_integration_is_found_among_the_shared_ones() -> None:
    """API Gateway's `$ref`; what a path says of its parameters is no method."""
    operation = {api_body.INTEGRATION: {"$ref": api_body.SHARED + "Read"}}
    body = {
        "paths": {"/v1/stream/{proxy+}": {"parameters": [], "get": operation}},
        "components": {"x-amazon-apigateway-integrations": {"Read": DECLARED}},
    }
    assert [key for key, _ in api_body.operations(body)] == ["GET /v1/stream/{proxy+}"]
    assert api_body.declared(body, operation) == DECLARED


def test_an_integration_keeps_what_the_document_declares() -> None:
    made = api_body.integration("i", DECLARED)
    assert (made["integrationType"], made["payloadFormatVersion"]) == ("AWS_PROXY", "2.0")
    assert made["integrationUri"] == URI


@pytest.mark.parametrize(
    ("port", "path"), [(1, "/_aws/execute-api/none/$default/v1/a%2Fb"), (2, "/v1/a%2Fb")]
)
def test_only_the_port_of_a_stack_leads_to_its_api(port: int, path: str) -> None:
    """Path as sent, escapes included; other ports are left alone."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    scope = {"type": "http", "server": ("127.0.0.1", port), "path": "/v1/a/b", "raw_path": b"/v1/a%2Fb"}
    asyncio.run(address.addressed(app, {1: "no-such-stack"})(scope, None, None))
    assert seen[0]["raw_path"].decode() == path


@pytest.mark.parametrize(("port", "headers"), [(1, [transport.HEADER]), (2, [])])
def test_only_requests_to_aws_count_as_encrypted(port: int, headers: list[Any]) -> None:
    """A client's request to a stack reaches it as it was sent."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    scope = {"type": "http", "server": ("127.0.0.1", port), "headers": []}
    asyncio.run(transport.encrypted(app, 1)(scope, None, None))
    assert seen[0]["headers"] == headers


def test_batch_actions_are_covered_by_the_single_ones() -> None:
    assert actions.COVERED_BY["sqs:SendMessageBatch"] == "sqs:SendMessage"


def test_compiled_packages_come_from_this_machine_and_pure_ones_from_the_layer(tmp_path: Path) -> None:
    """orjson is compiled; nothing else of this environment may stand in front of the layer."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("python/orjson/orjson.cpython-314-aarch64-linux-gnu.so", b"")
        archive.writestr("python/pure.py", "x = 1\n")
    natives = tmp_path / "natives"
    natives.mkdir()
    unpacked = layer.unpack(buffer.getvalue(), tmp_path / "layer", natives)
    assert {each.name.split("-")[0] for each in natives.iterdir()} == {"orjson"}
    assert list(unpacked.rglob("pure*.pyc"))


def test_a_pointer_says_where_the_layer_is(tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(layer.pointer_to(tmp_path))) as archive:
        assert archive.read(layer.POINTER).decode() == str(tmp_path)


def test_a_name_that_the_emulator_lost_ends_the_start() -> None:
    with pytest.raises(SystemExit, match="install the pinned version"):
        replace(types.ModuleType("emulator"), "gone", None)
