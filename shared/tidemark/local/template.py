"""The functions of `template.yaml`: where their code is, what calls them, and their limits.

The template is the only list of routes, so that what is deployed and what runs locally cannot drift apart.
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
#: API Gateway's extensions of OpenAPI.
ANY_METHOD: Final = "x-amazon-apigateway-any-method"
INTEGRATION: Final = "x-amazon-apigateway-integration"
INTEGRATIONS: Final = "x-amazon-apigateway-integrations"
SCHEDULES: Final = ("Schedule", "ScheduleV2")
#: Lambda's own defaults, where the template says nothing.
TIMEOUT_SECONDS: Final = 3
MEMORY_MB: Final = 128
BATCH_SIZE: Final = 100
QUEUE_BATCH_SIZE: Final = 10


class InvalidTemplate(ValueError):
    """The template lacks something that running it here needs; the message says what and where."""


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    module: Path
    attribute: str
    timeout_seconds: float
    memory_mb: int
    #: Those whose value is known here; a reference to a resource is not.
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Trigger:
    """A function that a table's stream calls."""

    function: str
    batch_size: int
    #: How often records that failed are delivered again.
    retries: int
    #: A record that matches none of them is left out; without any, none is.
    patterns: tuple[Mapping[str, Any], ...]


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


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """A CloudFormation function in its short form, as `!Ref Table`."""

    tag: str
    value: Any


def load_template(path: Path) -> Template:
    """Raises InvalidTemplate, OSError."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise InvalidTemplate(f"{path} is not YAML: {error}") from error
    if not isinstance(document, dict):
        raise InvalidTemplate(f"{path} is not a template")
    reader = _Reader(document, path.parent)
    resources = dict(reader.resources(FUNCTION))
    functions = {name: reader.function(name, resource) for name, resource in resources.items()}
    routes = tuple(route for _, api in reader.resources(HTTP_API) for route in _routes(api, functions))
    scheduled = tuple(
        name
        for name, resource in resources.items()
        if any(event.get("Type") in SCHEDULES for event in (resource.get("Events") or {}).values())
    )
    streaming = next(
        (
            name
            for name, resource in resources.items()
            if (resource.get("FunctionUrlConfig") or {}).get("InvokeMode") == "RESPONSE_STREAM"
        ),
        None,
    )
    triggers = tuple(trigger for name, resource in resources.items() for trigger in _triggers(name, resource))
    queues = tuple(queue for name, resource in resources.items() for queue in _queues(name, resource))
    return Template(functions, routes, scheduled, triggers, streaming, queues)


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


@dataclass(frozen=True, slots=True)
class _Reader:
    document: Mapping[str, Any]
    root: Path

    def resources(self, kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name, resource in (self.document.get("Resources") or {}).items():
            if resource.get("Type") == kind:
                yield name, resource.get("Properties") or {}

    def function(self, name: str, properties: Mapping[str, Any]) -> Function:
        shared = (self.document.get("Globals") or {}).get("Function") or {}
        settings = {**shared, **properties}
        code, handler = settings.get("CodeUri"), settings.get("Handler")
        if not isinstance(code, str) or not isinstance(handler, str) or "." not in handler:
            raise InvalidTemplate(f"{name} needs a CodeUri that is a path and a Handler like app.handler")
        module, attribute = handler.rsplit(".", 1)
        return Function(
            name=name,
            module=self.root / code / f"{module.replace('.', '/')}.py",
            attribute=attribute,
            timeout_seconds=float(self._value(settings.get("Timeout")) or TIMEOUT_SECONDS),
            memory_mb=int(self._value(settings.get("MemorySize")) or MEMORY_MB),
            variables=self._variables(shared) | self._variables(properties),
        )

    def _variables(self, properties: Mapping[str, Any]) -> dict[str, str]:
        declared = (properties.get("Environment") or {}).get("Variables") or {}
        known = {name: self._value(value) for name, value in declared.items()}
        return {name: value for name, value in known.items() if value is not None}

    def _value(self, declared: Any) -> str | None:
        """A plain value, or the default of the parameter it refers to; None where AWS alone knows."""
        if isinstance(declared, Intrinsic):
            parameters = self.document.get("Parameters") or {}
            parameter = parameters.get(declared.value) if declared.tag == "Ref" else None
            declared = (parameter or {}).get("Default")
        if isinstance(declared, bool):
            return "true" if declared else "false"
        return None if declared is None or isinstance(declared, (dict, list)) else str(declared)


def _routes(api: Mapping[str, Any], functions: Mapping[str, Function]) -> Iterator[Route]:
    """Those of an HTTP API's OpenAPI document, whose operations refer to its shared integrations."""
    body = api.get("DefinitionBody") or {}
    integrations = (body.get("components") or {}).get(INTEGRATIONS) or {}
    for path, operations in (body.get("paths") or {}).items():
        for method, operation in operations.items():
            if method == "parameters":
                continue
            integration = integrations.get(operation[INTEGRATION]["$ref"].rpartition("/")[2])
            called = [name.removesuffix(".Arn") for name in _attributes(integration)]
            if not called or called[0] not in functions:
                raise InvalidTemplate(f"{method} {path} leads to no function of the template")
            yield Route(ANY if method == ANY_METHOD else method.upper(), path, called[0])


def _attributes(declared: Any) -> Iterator[str]:
    """The names that a declaration asks for by !GetAtt, at any depth."""
    if isinstance(declared, Intrinsic):
        if declared.tag == "GetAtt":
            yield str(declared.value)
        declared = declared.value
    for each in declared.values() if isinstance(declared, Mapping) else ():
        yield from _attributes(each)
    for each in declared if isinstance(declared, list) else ():
        yield from _attributes(each)


def _triggers(function: str, properties: Mapping[str, Any]) -> Iterator[Trigger]:
    for event in (properties.get("Events") or {}).values():
        if event.get("Type") != "DynamoDB":
            continue
        settings = event.get("Properties") or {}
        filters = (settings.get("FilterCriteria") or {}).get("Filters") or []
        yield Trigger(
            function=function,
            batch_size=int(settings.get("BatchSize") or BATCH_SIZE),
            retries=int(settings.get("MaximumRetryAttempts", 0)),
            patterns=tuple(json.loads(each["Pattern"]) for each in filters),
        )


def _queues(function: str, properties: Mapping[str, Any]) -> Iterator[QueueTrigger]:
    for event in (properties.get("Events") or {}).values():
        if event.get("Type") == "SQS":
            yield QueueTrigger(
                function, int((event.get("Properties") or {}).get("BatchSize") or QUEUE_BATCH_SIZE)
            )


ANY: Final = "ANY"
DEFAULT: Final = "$default"


@dataclass(frozen=True, slots=True)
class Route:
    """A route of the template, `PUT /v1/stream/{proxy+}` or `$default`, and the function behind it."""

    method: str
    path: str
    function: str

    @property
    def key(self) -> str:
        return DEFAULT if self.path == DEFAULT else f"{self.method} {self.path}"


@dataclass(frozen=True, slots=True)
class Match:
    route: Route
    #: Decoded.
    path_parameters: Mapping[str, str] = field(default_factory=dict)


def match_route(routes: Sequence[Route], method: str, path: str) -> Match | None:
    """The most specific one, as an HTTP API decides it. `path` is decoded: a slash that was encoded separates
    too."""
    found: list[tuple[tuple[int, ...], bool, Match]] = []
    for route in routes:
        if route.path == DEFAULT or route.method not in (method, ANY):
            continue
        rank, pattern = _compiled(route.path)
        if parameters := pattern.fullmatch(path):
            found.append((rank, route.method == ANY, Match(route, parameters.groupdict())))
    if found:
        return min(found, key=lambda candidate: candidate[:2])[2]
    return next((Match(route) for route in routes if route.path == DEFAULT), None)


@cache
def _compiled(path: str) -> tuple[tuple[int, ...], re.Pattern[str]]:
    """How specific each segment is (0 a literal, 1 a variable, 2 all that is left), and which paths match."""
    rank = tuple(segment.startswith("{") + segment.endswith("+}") for segment in path.split("/"))
    pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path))
    return rank, re.compile(re.sub(r"\\{(\w+)\\\+\\}", r"(?P<\1>.*)", pattern), re.DOTALL)
