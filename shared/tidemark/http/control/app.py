"""The application of the control surface, and its part of the OpenAPI document."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from tidemark import __version__
from tidemark.http.control import console, routes


def create_control_app() -> FastAPI:
    app = FastAPI(title="Tidemark", version=__version__, openapi_url=None, redirect_slashes=False)
    app.include_router(routes.router)
    app.include_router(console.router)
    return app


def generated_document() -> dict[str, Any]:
    """Paths and schemas, as FastAPI makes them from the routes, without its own validation errors: a wrong
    parameter is a 400 here."""
    document = create_control_app().openapi()
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError", "Error"):
        schemas.pop(name, None)
    return {"paths": document["paths"], "schemas": schemas}
