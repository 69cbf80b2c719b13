"""A request takes the route that API Gateway would choose from those of `template.yaml`."""

from __future__ import annotations

import pytest

from tidemark.local.engines import ROOT
from tidemark.local.template import Route, Template, load_template, match_route


@pytest.fixture(scope="module")
def deployed() -> Template:
    return load_template(ROOT / "template.yaml")


@pytest.mark.parametrize(
    ("method", "path", "function", "key"),
    [
        ("PUT", "/v1/stream/tides", "WriteFunction", "PUT /v1/stream/{proxy+}"),
        ("POST", "/v1/stream/tides/north/sea", "WriteFunction", "POST /v1/stream/{proxy+}"),
        ("DELETE", "/v1/stream/a/b", "WriteFunction", "DELETE /v1/stream/{proxy+}"),
        ("GET", "/v1/stream/tides", "ReadFunction", "GET /v1/stream/{proxy+}"),
        ("HEAD", "/v1/stream/tides", "ReadFunction", "HEAD /v1/stream/{proxy+}"),
        ("GET", "/v1/health", "ReadFunction", "GET /v1/health"),
        ("OPTIONS", "/v1/stream/tides", "ReadFunction", "$default"),
        ("PATCH", "/v1/stream/tides", "ReadFunction", "$default"),
        ("PUT", "/v1/stream", "WriteFunction", "PUT /{bucket}/{proxy+}"),
        ("PUT", "/tides", "WriteFunction", "PUT /{bucket}"),
        ("DELETE", "/tides", "WriteFunction", "DELETE /{bucket}"),
        ("GET", "/tides", "ReadFunction", "$default"),
        ("GET", "/tides/streams", "ReadFunction", "$default"),
        ("PUT", "/tides/north", "WriteFunction", "PUT /{bucket}/{proxy+}"),
        ("PUT", "/tides/north/snapshot/0", "WriteFunction", "PUT /{bucket}/{proxy+}"),
        ("POST", "/tides/north/snapshot/0/upload", "WriteFunction", "POST /{bucket}/{proxy+}"),
        ("DELETE", "/tides/north", "WriteFunction", "DELETE /{bucket}/{proxy+}"),
        ("GET", "/tides/north/bootstrap", "ReadFunction", "$default"),
        ("HEAD", "/tides/north", "ReadFunction", "$default"),
        ("GET", "/", "ReadFunction", "$default"),
        ("POST", "/v1/health", "WriteFunction", "POST /{bucket}/{proxy+}"),
    ],
)
def test_the_templates_routes_lead_to_their_functions(
    deployed: Template, method: str, path: str, function: str, key: str
) -> None:
    """In the real template every method of the protocol reaches its function, and the rest `$default`."""
    match = match_route(deployed.routes, method, path)
    assert match is not None
    assert (match.route.function, match.route.key) == (function, key)


ROUTES = (
    Route("ANY", "$default", "default"),
    Route("ANY", "/{proxy+}", "everything"),
    Route("GET", "/pets/{proxy+}", "greedy"),
    Route("GET", "/pets/{kind}/{id}", "variables"),
    Route("GET", "/pets/dog/{id}", "variable"),
    Route("ANY", "/pets/dog/1", "any method"),
    Route("GET", "/pets/dog/1", "exact"),
)


@pytest.mark.parametrize(
    ("method", "path", "expected", "parameters"),
    [
        ("GET", "/pets/dog/1", "exact", {}),
        ("PUT", "/pets/dog/1", "any method", {}),
        ("GET", "/pets/dog/2", "variable", {"id": "2"}),
        ("GET", "/pets/cat/2", "variables", {"kind": "cat", "id": "2"}),
        ("GET", "/pets/cat/2/3", "greedy", {"proxy": "cat/2/3"}),
        ("GET", "/pets/", "greedy", {"proxy": ""}),
        ("GET", "/pets", "everything", {"proxy": "pets"}),
        ("PUT", "/pets/cat/2", "everything", {"proxy": "pets/cat/2"}),
        ("GET", "/pets//2", "greedy", {"proxy": "/2"}),
        ("GET", "/pets/cat/b c", "variables", {"kind": "cat", "id": "b c"}),
        ("GET", "/pets/dog/1/", "greedy", {"proxy": "dog/1/"}),
    ],
)
@pytest.mark.parametrize("routes", [ROUTES, ROUTES[::-1]], ids=["declared", "reversed"])
def test_the_most_specific_route_wins(
    routes: tuple[Route, ...], method: str, path: str, expected: str, parameters: dict[str, str]
) -> None:
    """Exact before variable before greedy before `$default`, in whatever order they are declared."""
    match = match_route(routes, method, path)
    assert match is not None
    assert match.route.function == expected
    assert match.path_parameters == parameters


def test_the_default_route_takes_all_other_requests() -> None:
    match = match_route([ROUTES[0], ROUTES[2]], "PUT", "/pets/cat")
    assert match is not None
    assert match.route.key == "$default"


def test_without_a_default_route_other_requests_have_no_route() -> None:
    assert match_route([ROUTES[2]], "PUT", "/pets/cat") is None
