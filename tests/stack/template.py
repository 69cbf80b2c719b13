"""The functions of `template.yaml`: where their code is, what calls them, and their limits.

The template is the only list of routes, so that what is deployed and what runs locally cannot drift apart.
What a template must have, `make lint` says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

FUNCTION: Final = "AWS::Serverless::Function"
HTTP_API: Final = "AWS::Serverless::HttpApi"
SOCKET_INTEGRATION: Final = "AWS::ApiGatewayV2::Integration"
#: API Gateway extends OpenAPI with these names.
ANY_METHOD: Final = "x-amazon-apigateway-any-method"
INTEGRATION: Final = "x-amazon-apigateway-integration"
INTEGRATIONS: Final = "x-amazon-apigateway-integrations"
#: Lambda uses these if the template says nothing.
TIMEOUT_SECONDS: Final = 3
MEMORY_MB: Final = 128
BATCH_SIZE: Final = 100
QUEUE_BATCH_SIZE: Final = 10

Declared = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    module: Path
    attribute: str
    timeout_seconds: float
    memory_mb: int
    #: The environment variables whose value is known here; that of a reference to a resource is not.
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Trigger:
    """A function that a table's stream calls."""

    function: str
    batch_size: int
    #: How often records that failed are delivered again.
    retries: int
    #: The function gets the records that match one of these, or all records if there are none.
    patterns: tuple[Declared, ...]


@dataclass(frozen=True, slots=True)
class QueueTrigger:
    """A function that works off a queue of the stack."""

    function: str
    batch_size: int


@dataclass(frozen=True, slots=True)
class Template:
    functions: Mapping[str, Function]
    routes: tuple[Route, ...]
    #: Names of the functions that a schedule calls.
    scheduled: tuple[str, ...]
    triggers: tuple[Trigger, ...] = ()
    #: The function that streams its responses, at an address of its own.
    streaming: str | None = None
    queues: tuple[QueueTrigger, ...] = ()
    #: The function behind the WebSocket API.
    socket: str | None = None


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """A CloudFormation function in its short form, as `!Ref Table`."""

    tag: str
    value: Any


def load_template(path: Path) -> Template:
    """Raises OSError."""
    document = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    functions = dict(_resources(document, FUNCTION))
    events = [
        (name, event["Type"], event.get("Properties") or {})
        for name, function in functions.items()
        for event in function.get("Events", {}).values()
    ]
    urls = [url for _, url in _resources(document, "AWS::Lambda::Url")]
    streaming = [url["TargetFunctionArn"].value for url in urls if url.get("InvokeMode") == "RESPONSE_STREAM"]
    return Template(
        functions={name: _function(document, path.parent, name) for name in functions},
        routes=tuple(route for _, api in _resources(document, HTTP_API) for route in _routes(api, functions)),
        scheduled=tuple(name for name, kind, _ in events if kind in {"Schedule", "ScheduleV2"}),
        triggers=tuple(_trigger(name, declared) for name, kind, declared in events if kind == "DynamoDB"),
        streaming=streaming[0] if streaming else None,
        queues=tuple(
            QueueTrigger(name, declared.get("BatchSize", QUEUE_BATCH_SIZE))
            for name, kind, declared in events
            if kind == "SQS"
        ),
        socket=_socket_function(document, functions),
    )


class _Loader(yaml.SafeLoader):
    """YAML with CloudFormation's tags."""


def _construct(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> Intrinsic:
    if isinstance(node, yaml.ScalarNode):
        return Intrinsic(tag, loader.construct_scalar(node))
    if isinstance(node, yaml.SequenceNode):
        return Intrinsic(tag, loader.construct_sequence(node, deep=True))
    assert isinstance(node, yaml.MappingNode)
    return Intrinsic(tag, loader.construct_mapping(node, deep=True))


_Loader.add_multi_constructor("!", _construct)


def _resources(document: Declared, kind: str) -> Iterator[tuple[str, Declared]]:
    for name, resource in document["Resources"].items():
        if resource["Type"] == kind:
            yield name, resource["Properties"]


def _function(document: Declared, root: Path, name: str) -> Function:
    shared = document.get("Globals", {}).get("Function", {})
    own = document["Resources"][name]["Properties"]
    settings = {**shared, **own}
    module, attribute = settings["Handler"].rsplit(".", 1)
    known = {
        variable: _value(document, value)
        for declared in (shared, own)
        for variable, value in declared.get("Environment", {}).get("Variables", {}).items()
    }
    return Function(
        name=name,
        module=root / settings["CodeUri"] / f"{module.replace('.', '/')}.py",
        attribute=attribute,
        timeout_seconds=float(_value(document, settings.get("Timeout")) or TIMEOUT_SECONDS),
        memory_mb=int(_value(document, settings.get("MemorySize")) or MEMORY_MB),
        variables={variable: value for variable, value in known.items() if value is not None},
    )


def _value(document: Declared, declared: Any) -> str | None:
    """A plain value, or the default of the parameter it refers to; None where AWS alone knows."""
    if isinstance(declared, Intrinsic):
        parameter = document.get("Parameters", {}).get(declared.value) if declared.tag == "Ref" else None
        declared = (parameter or {}).get("Default")
    if isinstance(declared, bool):
        return "true" if declared else "false"
    return None if declared is None else str(declared)


def _routes(api: Declared, functions: Declared) -> Iterator[Route]:
    """The routes of an HTTP API's OpenAPI document, whose operations refer to its shared integrations."""
    integrations = api["DefinitionBody"]["components"][INTEGRATIONS]
    for path, operations in api["DefinitionBody"]["paths"].items():
        for method, operation in operations.items():
            if method != "parameters":
                integration = integrations[operation[INTEGRATION]["$ref"].rpartition("/")[2]]
                function = _referred(integration, functions)
                yield Route(_ANY if method == ANY_METHOD else method.upper(), path, function)


def _socket_function(document: Declared, functions: Declared) -> str | None:
    for _, integration in _resources(document, SOCKET_INTEGRATION):
        if integration["IntegrationType"] == "AWS_PROXY":
            return _referred(integration["IntegrationUri"], functions)
    return None


def _referred(declared: Any, known: Declared) -> str:
    """The first of the known resources that a declaration refers to."""
    return next(name for name in _references(declared) if name in known)


def _references(declared: Any) -> Iterator[str]:
    """The names in !Ref, !GetAtt and !Sub, at any depth."""
    if isinstance(declared, Intrinsic):
        if declared.tag == "Sub":
            yield from re.findall(r"\$\{(\w+)", str(declared.value))
        elif isinstance(declared.value, str):
            yield declared.value.partition(".")[0]
        declared = declared.value
    for each in declared.values() if isinstance(declared, Mapping) else ():
        yield from _references(each)
    for each in declared if isinstance(declared, list) else ():
        yield from _references(each)


def _trigger(function: str, declared: Declared) -> Trigger:
    return Trigger(
        function=function,
        batch_size=declared.get("BatchSize", BATCH_SIZE),
        retries=declared.get("MaximumRetryAttempts", 0),
        patterns=tuple(json.loads(each["Pattern"]) for each in declared["FilterCriteria"]["Filters"]),
    )


_ANY: Final = "ANY"
_DEFAULT: Final = "$default"


@dataclass(frozen=True, slots=True)
class Route:
    """A route of the template, `PUT /{proxy+}` or `$default`, and the function behind it."""

    method: str
    path: str
    function: str

    @property
    def key(self) -> str:
        return _DEFAULT if self.path == _DEFAULT else f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Match:
    route: Route
    #: Decoded.
    path_parameters: Mapping[str, str] = field(default_factory=dict)


def match_route(routes: Sequence[Route], method: str, path: str) -> Match:
    """The most specific one, as an HTTP API decides it; `$default` takes what is left. `path` is decoded: a
    slash that was encoded separates too."""
    found: list[tuple[tuple[int, ...], bool, Match]] = []
    for route in routes:
        rank, pattern = _compiled(route.path)
        if route.method in (method, _ANY) and (parameters := pattern.fullmatch(path)):
            found.append((rank, route.method == _ANY, Match(route, parameters.groupdict())))
    return min(found, key=lambda candidate: candidate[:2])[2]


@cache
def _compiled(path: str) -> tuple[tuple[int, ...], re.Pattern[str]]:
    """How specific each segment is (0 a literal, 1 a variable, 2 all that is left), and which paths match."""
    if path == _DEFAULT:
        return (3,), re.compile(".*", re.DOTALL)
    rank = tuple(segment.startswith("{") + segment.endswith("+}") for segment in path.split("/"))
    pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path))
    return rank, re.compile(re.sub(r"\\{(\w+)\\\+\\}", r"(?P<\1>.*)", pattern), re.DOTALL)
