"""The template is read as SAM would: globals, parameters' defaults, CloudFormation's short tags."""

from pathlib import Path

import pytest

from tests.stack.emulators import ROOT
from tests.stack.template import Route, load_template, match_route

DEPLOYED = load_template(ROOT / "template.yaml")


def test_each_function_of_the_deployed_template_has_its_code_and_two_have_a_schedule() -> None:
    functions = dict(DEPLOYED.functions)
    live = functions.pop("LiveFunction")
    assert live.module.with_suffix(".sh").is_file(), "the web adapter starts a script, not a handler"
    assert {"WriteFunction", "ReadFunction", "JanitorFunction"} <= functions.keys()
    assert all(each.module.is_file() and each.attribute == "handler" for each in functions.values())
    assert (DEPLOYED.scheduled, DEPLOYED.socket) == (("JanitorFunction", "PackerFunction"), "SocketFunction")


DECLARED = """
Parameters:
  Wait: {Type: Number, Default: 25}
  Size: {Type: Number, Default: 512}
Globals:
  Function:
    Handler: app.handler
    MemorySize: !Ref Size
    Environment:
      Variables: {TABLE_NAME: !Ref Table, SHARED: shared, FLAG: true}
Resources:
  Table: {Type: AWS::DynamoDB::Table}
  First:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: first/
      Timeout: !Ref Wait
      Environment:
        Variables: {OWN: 7, SHARED: own, ARN: !GetAtt Table.Arn, NAME: !Sub "${Table}-x"}
      Layers: [!Ref Layer, !If [Yes, !Ref A, !Ref AWS::NoValue]]
  Second:
    Type: AWS::Serverless::Function
    Properties: {CodeUri: second, Handler: src.main.run}
"""


def test_globals_default_parameters_and_short_tags_are_resolved(tmp_path: Path) -> None:
    path = tmp_path / "template.yaml"
    path.write_text(DECLARED)
    functions = load_template(path).functions
    first, second = functions["First"], functions["Second"]
    assert first.module == tmp_path / "first/app.py"
    assert (first.timeout_seconds, first.memory_mb) == (25, 512)
    # What only AWS knows is left to the process's environment.
    assert first.variables == {"SHARED": "own", "FLAG": "true", "OWN": "7"}
    assert (second.module, second.attribute) == (tmp_path / "second/src/main.py", "run")
    assert second.timeout_seconds == 3, "Lambda's default"


@pytest.mark.parametrize(
    ("method", "path", "function", "key"),
    [
        ("POST", "/v1/stream/tides/north/sea", "WriteFunction", "POST /{proxy+}"),
        ("GET", "/v1/stream/tides", "ReadFunction", "$default"),
        ("GET", "/v1/health", "ReadFunction", "$default"),
        ("OPTIONS", "/v1/stream/tides", "ReadFunction", "$default"),
        ("PUT", "/v1/stream", "WriteFunction", "PUT /{proxy+}"),
        ("DELETE", "/tides", "WriteFunction", "DELETE /{proxy+}"),
        ("GET", "/tides/streams", "ReadFunction", "$default"),
        ("POST", "/v1/health", "WriteFunction", "POST /{proxy+}"),
    ],
)
def test_the_deployed_templates_routes_lead_to_their_functions(
    method: str, path: str, function: str, key: str
) -> None:
    """Every method of the protocol reaches its function, and the rest `$default`."""
    match = match_route(DEPLOYED.routes, method, path)
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
        ("GET", "/pets/", "greedy", {"proxy": ""}),
        ("GET", "/pets", "everything", {"proxy": "pets"}),
        ("PUT", "/pets/cat/2", "everything", {"proxy": "pets/cat/2"}),
        ("GET", "/pets//2", "greedy", {"proxy": "/2"}),
    ],
)
@pytest.mark.parametrize("routes", [ROUTES, ROUTES[::-1]], ids=["declared", "reversed"])
def test_the_most_specific_route_wins(
    routes: tuple[Route, ...], method: str, path: str, expected: str, parameters: dict[str, str]
) -> None:
    """Exact before variable before greedy before `$default`, in whatever order they are declared."""
    match = match_route(routes, method, path)
    assert (match.route.function, match.path_parameters) == (expected, parameters)
