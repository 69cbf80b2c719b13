"""A WebSocket API: the emulator serves one, but CloudFormation there makes no route response, and nothing
resolves its address, which the functions name to clients and send to themselves."""

from __future__ import annotations

from typing import Any

from ministack.core import lambda_runtime
from ministack.services import apigateway
from ministack.services.cloudformation import provisioners

from tests.emulated.shims.names import replace

RESOURCE = "AWS::ApiGatewayV2::RouteResponse"
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
    if RESOURCE in provisioners._RESOURCE_HANDLERS:
        raise SystemExit(f"this ministack makes {RESOURCE}: remove the shim")
    provisioners._RESOURCE_HANDLERS[RESOURCE] = {"create": create, "delete": delete}
    detect = lambda_runtime._detect_runtime_binary

    def detect_addressed(runtime: str) -> tuple[str, str]:
        binary, script = detect(runtime)
        if not runtime.startswith("python"):
            return binary, script
        if GIVEN not in script:
            raise SystemExit("this ministack gives a function its variables elsewhere: change the shim")
        return binary, script.replace(GIVEN, GIVEN + ADDRESSED)

    replace(lambda_runtime, "_detect_runtime_binary", detect_addressed)


def create(_logical_id: str, properties: Any, _stack_name: str) -> tuple[str, dict[str, Any]]:
    api_id, route_id = properties["ApiId"], properties["RouteId"].rpartition("/")[2]
    status, _, body = apigateway._create_route_response(
        api_id, route_id, {"routeResponseKey": properties["RouteResponseKey"]}
    )
    if status >= 400:
        raise ValueError(f"{RESOURCE} create failed: {body!r}")
    return f"{api_id}/{route_id}", {}


def delete(physical_id: str, _properties: Any) -> None:
    api_id, _, route_id = physical_id.partition("/")
    apigateway._route_responses.get(api_id, {}).pop(route_id, None)
