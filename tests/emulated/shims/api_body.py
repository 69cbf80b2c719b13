"""An HTTP API's `Body` (OpenAPI): AWS imports its routes and integrations; the emulator ignores it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ministack.core.responses import new_uuid
from ministack.services import apigateway
from ministack.services.cloudformation import provisioners

RESOURCE = "AWS::ApiGatewayV2::Api"
ANY_METHOD = "x-amazon-apigateway-any-method"
INTEGRATION = "x-amazon-apigateway-integration"
SHARED = "#/components/x-amazon-apigateway-integrations/"


def install() -> None:
    handlers = provisioners._RESOURCE_HANDLERS[RESOURCE]
    create, update = handlers["create"], handlers["update"]

    def create_with_body(logical_id: str, properties: Any, stack_name: str) -> Any:
        created = create(logical_id, properties, stack_name)
        import_body(created[0], properties.get("Body"))
        return created

    def update_with_body(
        physical_id: str, old: Any, new: Any, stack_name: str, logical_id: str | None = None
    ) -> Any:
        updated = update(physical_id, old, new, stack_name, logical_id)
        import_body(updated[0], new.get("Body"))
        return updated

    handlers.update(create=create_with_body, update=update_with_body)


def import_body(api_id: str, body: Any) -> None:
    """In place of all routes that the API has: an import overwrites."""
    if not body:
        return
    routes: dict[str, Any] = {}
    integrations: dict[str, Any] = {}
    for route_key, operation in operations(body):
        route_id, integration_id = new_uuid()[:8], new_uuid()[:8]
        integrations[integration_id] = integration(integration_id, declared(body, operation))
        routes[route_id] = {
            "routeId": route_id,
            "routeKey": route_key,
            "target": f"integrations/{integration_id}",
            "authorizationType": "NONE",
            "authorizationScopes": [],
            "apiKeyRequired": False,
            "requestModels": {},
            "requestParameters": {},
        }
    apigateway._apis[api_id]["name"] = body["info"]["title"]
    apigateway._routes[api_id] = routes
    apigateway._integrations[api_id] = integrations


def operations(body: Any) -> Iterator[tuple[str, Any]]:
    """Route keys as API Gateway names them, each with its OpenAPI operation."""
    for path, methods in body["paths"].items():
        for method, operation in methods.items():
            if method == "parameters":
                continue
            if path.lstrip("/") == "$default":
                yield "$default", operation
            else:
                yield f"{'ANY' if method == ANY_METHOD else method.upper()} {path}", operation


def declared(body: Any, operation: Any) -> Any:
    """The integration of an operation, which may be one of the document's shared ones."""
    found = operation[INTEGRATION]
    if "$ref" in found:
        return body["components"]["x-amazon-apigateway-integrations"][found["$ref"].removeprefix(SHARED)]
    return found


def integration(integration_id: str, declared: Any) -> dict[str, Any]:
    return {
        "integrationId": integration_id,
        "integrationType": declared["type"].upper(),
        "integrationUri": declared["uri"],
        "integrationMethod": declared["httpMethod"],
        "payloadFormatVersion": declared["payloadFormatVersion"],
        "timeoutInMillis": 30_000,
        "connectionType": "INTERNET",
        "requestParameters": {},
        "responseParameters": {},
    }
