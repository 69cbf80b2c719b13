"""The routers of the control surface, beside subscriptions.

They are FastAPI routers: its models check bodies and write the OpenAPI document. To add routes: write a
module with a FastAPI `router`, add a line to ROUTERS, say in `http/security/required_scopes.py` which scopes
its paths need, and in `template.yaml` which function gets them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from tidemark import __version__
from tidemark.http.control_paths import CATALOG, PAGES, SUBSCRIPTION_ROOTS

if TYPE_CHECKING:
    from fastapi import FastAPI


@dataclass(frozen=True, slots=True)
class ControlRouter:
    """`module` has a FastAPI router by the name of `router`, whose routes name whole paths. It answers
    `paths`, before any stream or bucket would: one that ends in a slash with everything below it."""

    module: str
    paths: tuple[str, ...]


#: Every router of the control surface.
ROUTERS: Final[tuple[ControlRouter, ...]] = (
    ControlRouter("tidemark.http.catalog.routes", CATALOG),
    ControlRouter("tidemark.http.console.routes", PAGES),
)


def control_app() -> FastAPI:
    """All routers as one application."""
    from fastapi import FastAPI

    app = FastAPI(
        title="Tidemark",
        version=__version__,
        openapi_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    for router in ROUTERS:
        app.include_router(import_module(router.module).router)
    return app


def describe() -> Mapping[str, Any]:
    """The control surface's part of the OpenAPI document, subscriptions with it."""
    app = control_app()
    subscriptions = import_module("tidemark.http.subscriptions.routes").router
    app.include_router(subscriptions, prefix=SUBSCRIPTION_ROOTS[0].removesuffix("/"))
    document = app.openapi()
    # What a model does not accept is a 400 here.
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
    return document
