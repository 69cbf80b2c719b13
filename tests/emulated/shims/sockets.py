"""A WebSocket API: the emulator serves one, but CloudFormation there makes no responses, and nothing
resolves its address, which the functions name to clients and send to themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ministack.core import lambda_runtime
from ministack.services import apigateway
from ministack.services.cloudformation import provisioners

from tests.emulated.shims.names import replace

ROUTE_RESPONSE = "AWS::ApiGatewayV2::RouteResponse"
INTEGRATION_RESPONSE = "AWS::ApiGatewayV2::IntegrationResponse"
#: Of the emulator's worker script, where a function's variables become the process's own.
GIVEN = "    os.environ.update(env)\n"
#: Behind it: the same API by a path of the emulator's own address.
ADDRESSED = r"""
    import re as _re
    _host = os.environ["AWS_ENDPOINT_URL"].removeprefix("http://")
    for _name, _scheme in {"SOCKET_URL": "ws", "SOCKET_ENDPOINT": "http"}.items():
        _path = rf"{_scheme}://{_host}/_aws/execute-api/\1"
        _url = os.environ.get(_name, "")
        os.environ[_name] = _re.sub(r"^(?:wss|https)://(\w+)\.execute-api\.[^/]+", _path, _url)
"""


def install() -> None:
    for resource, (create, responses) in RESPONSES.items():
        if resource in provisioners._RESOURCE_HANDLERS:
            raise SystemExit(f"this ministack makes {resource}: remove the shim")
        handlers = {"create": partial(checked, create), "delete": partial(delete, responses)}
        provisioners._RESOURCE_HANDLERS[resource] = handlers
    detect = lambda_runtime._detect_runtime_binary

    def detect_addressed(runtime: str) -> tuple[str, str]:
        binary, script = detect(runtime)
        if not runtime.startswith("python"):
            return binary, script
        if GIVEN not in script:
            raise SystemExit("this ministack gives a function its variables elsewhere: change the shim")
        return binary, script.replace(GIVEN, GIVEN + ADDRESSED)

    replace(lambda_runtime, "_detect_runtime_binary", detect_addressed)


def create_route_response(api_id: str, properties: Any) -> tuple[str, Any]:
    route_id = properties["RouteId"].rpartition("/")[2]
    data = {"routeResponseKey": properties["RouteResponseKey"]}
    return route_id, apigateway._create_route_response(api_id, route_id, data)


def create_integration_response(api_id: str, properties: Any) -> tuple[str, Any]:
    integration_id = properties["IntegrationId"].rpartition("/")[2]
    data = {"responseTemplates": properties["ResponseTemplates"]}
    return integration_id, apigateway._create_integration_response(api_id, integration_id, data)


RESPONSES = {
    ROUTE_RESPONSE: (create_route_response, apigateway._route_responses),
    INTEGRATION_RESPONSE: (create_integration_response, apigateway._integration_responses),
}


def checked(
    create: Callable[[str, Any], tuple[str, Any]], _logical_id: str, properties: Any, _stack_name: str
) -> tuple[str, dict[str, Any]]:
    owner_id, (status, _, body) = create(properties["ApiId"], properties)
    if status >= 400:
        raise ValueError(f"a response was not created: {body!r}")
    return f"{properties['ApiId']}/{owner_id}", {}


def delete(responses: Any, physical_id: str, _properties: Any) -> None:
    api_id, _, owner_id = physical_id.partition("/")
    responses.get(api_id, {}).pop(owner_id, None)
