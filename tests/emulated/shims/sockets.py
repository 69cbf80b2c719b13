"""A WebSocket API: the emulator serves one, but CloudFormation there makes no responses and no deployment,
and nothing resolves its address, which functions tell clients and send to themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from ministack.core import lambda_runtime
from ministack.services import apigateway
from ministack.services.cloudformation import provisioners

from tests.emulated.shims.names import replace

#: The resources, each with what it is a response of.
RESPONSES = {
    f"AWS::ApiGatewayV2::{owner}Response": (f"{owner}Id", f"{owner.lower()}_response")
    for owner in ("Route", "Integration")
}
DEPLOYMENT = "AWS::ApiGatewayV2::Deployment"
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
    for resource, (owner, name) in RESPONSES.items():
        if resource in provisioners._RESOURCE_HANDLERS:
            raise SystemExit(f"this ministack makes {resource}: remove the shim")
        provisioners._RESOURCE_HANDLERS[resource] = {
            "create": partial(create, owner, getattr(apigateway, f"_create_{name}")),
            "delete": partial(delete, getattr(apigateway, f"_{name}s")),
        }
    if DEPLOYMENT in provisioners._RESOURCE_HANDLERS:
        raise SystemExit(f"this ministack makes {DEPLOYMENT}: remove the shim")
    provisioners._RESOURCE_HANDLERS[DEPLOYMENT] = {"create": deploy, "delete": undeploy}
    detect = lambda_runtime._detect_runtime_binary

    def detect_addressed(runtime: str) -> tuple[str, str]:
        binary, script = detect(runtime)
        if not runtime.startswith("python"):
            return binary, script
        if GIVEN not in script:
            raise SystemExit("this ministack gives a function its variables elsewhere: change the shim")
        return binary, script.replace(GIVEN, GIVEN + ADDRESSED)

    replace(lambda_runtime, "_detect_runtime_binary", detect_addressed)


def create(
    owner: str, make: Callable[..., Any], _logical_id: str, properties: Any, _stack_name: str
) -> tuple[str, dict[str, Any]]:
    """With the key `$default`, as all of ours."""
    api_id, owner_id = properties["ApiId"], properties[owner].rpartition("/")[2]
    status, _, body = make(api_id, owner_id, {"responseTemplates": properties.get("ResponseTemplates", {})})
    if status >= 400:
        raise ValueError(f"a response was not created: {body!r}")
    return f"{api_id}/{owner_id}", {}


def delete(responses: Any, physical_id: str, _properties: Any) -> None:
    api_id, _, owner_id = physical_id.partition("/")
    responses.get(api_id, {}).pop(owner_id, None)


def deploy(_logical_id: str, properties: Any, _stack_name: str) -> tuple[str, dict[str, Any]]:
    _, _, body = apigateway._create_deployment(properties["ApiId"], {})
    return json.loads(body)["deploymentId"], {}


def undeploy(physical_id: str, properties: Any) -> None:
    apigateway._delete_deployment(properties["ApiId"], physical_id)
