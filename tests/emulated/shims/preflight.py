"""OPTIONS on an HTTP API without a CORS configuration: AWS sends it to its route, here `$default`, like any
other method. The emulator answers 403 by itself."""

from __future__ import annotations

from typing import Any

from ministack.services import apigateway

from tests.emulated.shims.names import replace


def install() -> None:
    handle = apigateway._handle_execute_in_scope

    async def handle_options_too(*request: Any) -> Any:
        api_id, stage, path, method, headers, body, query, account, region, raw_query = request
        api = apigateway._apis.get(api_id) or {}
        if method != "OPTIONS" or api.get("corsConfiguration"):
            return await handle(*request)
        route = apigateway._match_route(api_id, method, "/" + path.lstrip("/"))
        if route is None:
            return apigateway._http_api_not_found()
        integration = apigateway._integrations[api_id][route["target"].rpartition("/")[2]]
        return await apigateway._invoke_lambda_proxy(
            integration, api_id, stage, path, method, headers, body, query, route["routeKey"], None,
            owner_account_id=account, owner_region=region, raw_query_string=raw_query,
        )  # fmt: skip

    replace(apigateway, "_handle_execute_in_scope", handle_options_too)
