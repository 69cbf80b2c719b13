"""What the template must keep saying, held against the code it deploys."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidemark.log.schema import table_definition
from tidemark.settings import Settings

ROOT = Path(__file__).parents[2]
EVENTS = sorted((ROOT / "events").glob("*.json"))
HTTP_API_SECONDS = 30


class CloudFormationLoader(yaml.SafeLoader):
    """Reads `!Sub x` as `{"Sub": x}`, whatever the tag."""


def read_tag(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        return {tag: loader.construct_scalar(node)}
    if isinstance(node, yaml.SequenceNode):
        return {tag: loader.construct_sequence(node, deep=True)}
    assert isinstance(node, yaml.MappingNode)
    return {tag: loader.construct_mapping(node, deep=True)}


CloudFormationLoader.add_multi_constructor("!", read_tag)

TEMPLATE = yaml.load((ROOT / "template.yaml").read_text(), CloudFormationLoader)
FUNCTION_GLOBALS = TEMPLATE["Globals"]["Function"]
FUNCTIONS = {
    name: resource["Properties"]
    for name, resource in TEMPLATE["Resources"].items()
    if resource["Type"] == "AWS::Serverless::Function"
}


def route_key(event: dict[str, Any]) -> str:
    properties = event["Properties"]
    return f"{properties['Method']} {properties['Path']}" if "Path" in properties else "$default"


ROUTES = [
    (route_key(event), name)
    for name, function in FUNCTIONS.items()
    for event in function["Events"].values()
    if event["Type"] == "HttpApi"
]
ALLOWED = [
    pytest.param(statement, id=f"{name}-{statement['Sid']}")
    for name, function in FUNCTIONS.items()
    for policy in function["Policies"]
    for statement in policy["Statement"]
]


class Recorded(dict[str, str]):
    """An empty environment that remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


def test_the_functions_get_exactly_the_variables_that_settings_read() -> None:
    """A variable misspelt on either side would silently mean its default."""
    environment = Recorded()
    Settings.from_environment(environment)
    assert set(FUNCTION_GLOBALS["Environment"]["Variables"]) == environment.asked
    assert [name for name, function in FUNCTIONS.items() if "Environment" in function] == []


def test_the_table_is_the_one_the_code_creates_locally() -> None:
    """Keys, billing and stream view: what the tests ran against is what is deployed."""
    local = table_definition("t")
    deployed = TEMPLATE["Resources"]["Table"]["Properties"]
    for name in ("BillingMode", "AttributeDefinitions", "KeySchema"):
        assert deployed[name] == local[name]
    assert local["StreamSpecification"] == {"StreamEnabled": True} | deployed["StreamSpecification"]
    assert deployed["StreamSpecification"] == {"StreamViewType": "KEYS_ONLY"}


def test_what_is_kept_is_protected() -> None:
    """Recoverable to any second, expiring by the attribute the schema writes, private, kept."""
    table, bucket = TEMPLATE["Resources"]["Table"], TEMPLATE["Resources"]["Bucket"]
    assert table["Properties"]["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert table["Properties"]["TimeToLiveSpecification"] == {"AttributeName": "ttl", "Enabled": True}
    assert set(bucket["Properties"]["PublicAccessBlockConfiguration"].values()) == {True}
    assert {table["UpdateReplacePolicy"], bucket["UpdateReplacePolicy"]} == {"Retain"}


@pytest.mark.parametrize("statement", ALLOWED)
def test_no_function_may_do_or_touch_everything(statement: dict[str, Any]) -> None:
    """Actions by name, on the stack's own table and bucket."""
    actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
    assert [action for action in actions if "*" in action] == []
    assert statement["Resource"] in (
        {"GetAtt": "Table.Arn"},
        {"GetAtt": "Bucket.Arn"},
        {"Sub": "${Bucket.Arn}/*"},
    )


def test_methods_go_to_the_function_that_may_serve_them() -> None:
    """What changes a stream goes to `write`; all else, unknown methods and paths too, to `read`."""
    stream = "/v1/stream/{proxy+}"
    assert sorted(ROUTES) == sorted(
        [(f"{method} {stream}", "WriteFunction") for method in ("PUT", "POST", "DELETE")]
        + [(f"{method} {stream}", "ReadFunction") for method in ("GET", "HEAD")]
        + [("GET /v1/health", "ReadFunction"), ("$default", "ReadFunction")]
    )


def test_preflights_are_left_to_the_application() -> None:
    """With CorsConfiguration API Gateway would answer OPTIONS itself and drop the application's headers."""
    assert "CorsConfiguration" not in TEMPLATE["Resources"]["Api"].get("Properties", {})


def test_no_wait_outlives_the_http_api() -> None:
    """The longest settable wait leaves the function two seconds to answer before it and the API give up."""
    for name in ("LongPollSeconds", "SseBufferedSeconds"):
        assert TEMPLATE["Parameters"][name]["MaxValue"] + 2 < HTTP_API_SECONDS
    assert {FUNCTIONS[name]["Timeout"] for name in ("WriteFunction", "ReadFunction")} == {HTTP_API_SECONDS}


def test_nobody_deploys_without_authorization_by_accident() -> None:
    assert TEMPLATE["Parameters"]["AllowUnauthenticated"]["Default"] == "false"
    assert TEMPLATE["Rules"]["OpenToEverybody"]["Assertions"][0]["Assert"] == {
        "Equals": [{"Ref": "AllowUnauthenticated"}, "true"]
    }


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_code_named_by_the_template_is_there(name: str) -> None:
    """The handler exists, and the directory's Makefile builds the function under its logical name."""
    directory = ROOT / FUNCTIONS[name]["CodeUri"]
    module, attribute = FUNCTION_GLOBALS["Handler"].split(".")
    assert attribute in names_defined(directory / f"{module}.py")
    assert (directory / "Makefile").read_text().startswith(f"build-{name}:")


def names_defined(path: Path) -> set[str]:
    names: set[str] = set()
    for statement in ast.parse(path.read_text()).body:
        match statement:
            case ast.FunctionDef(name=name):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


def test_the_layer_is_built_for_the_runtime_that_loads_it() -> None:
    """A wheel for another Python or processor fails only at the first invocation."""
    makefile = (ROOT / "shared" / "Makefile").read_text()
    assert f"\nRUNTIME := {FUNCTION_GLOBALS['Runtime'].removeprefix('python')}\n" in makefile
    assert FUNCTION_GLOBALS["Architectures"] == ["arm64"]
    assert "\nPLATFORM := aarch64\n" in makefile


@pytest.mark.parametrize("path", EVENTS, ids=lambda path: path.stem)
def test_every_sample_event_is_one_the_template_delivers(path: Path) -> None:
    event = json.loads(path.read_text())
    if event.get("source") == "aws.events":
        assert "Schedule" in {each["Type"] for each in FUNCTIONS["JanitorFunction"]["Events"].values()}
        return
    context = event["requestContext"]
    assert event["routeKey"] in dict(ROUTES)
    assert (context["routeKey"], context["http"]["path"]) == (event["routeKey"], event["rawPath"])
    assert event["routeKey"] in ("$default", f"{context['http']['method']} /v1/stream/{{proxy+}}")
    assert [name for name in event["headers"] if name != name.lower()] == []


def test_the_sample_events_cover_every_route_of_a_stream() -> None:
    sampled = {json.loads(path.read_text()).get("routeKey") for path in EVENTS}
    assert {route for route, _ in ROUTES if route != "GET /v1/health"} <= sampled
