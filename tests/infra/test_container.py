"""The container's template, held against the main one, the live function and the server."""

import re
from typing import Any

import pytest
import yaml

from tests.infra.test_edge import DEFAULTS, holds, resolve
from tests.infra.test_template import (
    FUNCTION_GLOBALS,
    FUNCTIONS,
    ORIGINS,
    ROOT,
    TEMPLATE,
    CloudFormationLoader,
    statements_of,
)
from tidemark.server.container import ADDRESS

CHILD = yaml.load((ROOT / "container" / "template.yaml").read_text(), CloudFormationLoader)
RESOURCES = {name: each.get("Properties", {}) for name, each in CHILD["Resources"].items()}
[LIVE] = RESOURCES["Task"]["ContainerDefinitions"]
VARIABLES = {each["Name"]: each["Value"] for each in LIVE["Environment"]}
ORIGIN = {"LiveOrigin": "balancer.internal,vo_1"}


def test_an_edge_leads_to_the_container_and_tells_it_the_origin_secret() -> None:
    """One that the main stack makes for itself is in no output."""
    for template, given, missing in (
        (TEMPLATE, ORIGIN, {"Edge": "false"}),
        (CHILD, {"Edge": "true", "EdgeSecretName": "/w"}, {"EdgeSecretName": ""}),
    ):
        [rule] = [
            template["Rules"][name] for name in template["Rules"] if name in ("WhoseOrigin", "KnowsTheEdge")
        ]
        [assertion] = rule["Assertions"]
        assert holds(rule["RuleCondition"], DEFAULTS | given)
        assert holds(assertion["Assert"], DEFAULTS | given)
        assert not holds(assertion["Assert"], DEFAULTS | given | missing)
    assert "EDGE_SECRET" not in VARIABLES


def test_what_is_not_its_own_is_a_parameter_or_an_output_of_the_main_stack() -> None:
    """By the same name: so `make deploy` hands it on. A parameter of both has the same default."""
    own = {"Image", "Vpc", "Subnets", "Sources", "Tasks"}
    main = TEMPLATE["Parameters"]
    assert CHILD["Parameters"].keys() - own <= main.keys() | TEMPLATE["Outputs"].keys()
    for name in CHILD["Parameters"].keys() & main.keys():
        assert CHILD["Parameters"][name]["Default"] == main[name]["Default"], name


def test_it_gets_the_functions_variables_by_the_same_values() -> None:
    deployed = FUNCTION_GLOBALS["Environment"]["Variables"]
    own = {"DRAIN_SECONDS", "KEEP_ALIVE_SECONDS"}
    assert VARIABLES.keys() - own <= deployed.keys()
    outputs = {name: each["Value"] for name, each in TEMPLATE["Outputs"].items()}
    for name in VARIABLES.keys() - own:
        given = VARIABLES[name]
        expected = outputs.get(given.get("Ref"), given)
        assert deployed[name] in (expected, {"If": ["HasAuthSecret", expected, ""]}), name
    for edge in TEMPLATE["Parameters"]["Edge"]["AllowedValues"]:
        given = DEFAULTS | {"Edge": edge}
        mine, theirs = (
            holds(each["Conditions"]["IsEdgeOnly"], given, each["Conditions"]) for each in (CHILD, TEMPLATE)
        )
        assert mine == theirs


def test_it_may_do_what_the_live_function_may() -> None:
    def listed(statement: dict[str, Any]) -> tuple[str, list[str]]:
        actions = statement["Action"]
        return statement["Sid"], [actions] if isinstance(actions, str) else actions

    [policy] = RESOURCES["TaskRole"]["Policies"]
    statements = [each["If"][1] if "If" in each else each for each in policy["PolicyDocument"]["Statement"]]
    assert list(map(listed, statements)) == list(map(listed, statements_of(FUNCTIONS["LiveFunction"])))
    for mine, live in zip(statements, statements_of(FUNCTIONS["LiveFunction"]), strict=True):
        assert mine.get("Condition") == live.get("Condition")
        assert mine["Resource"] != "*"


def attributes(resource: str, name: str) -> dict[str, str]:
    return {each["Key"]: each["Value"] for each in RESOURCES[resource][name]}


def test_nothing_ends_before_what_it_waits_for() -> None:
    """An event stream ends before its task must, a task drains before it is killed, and a connection that the
    load balancer keeps is still open when it sends."""
    idle = int(attributes("LoadBalancer", "LoadBalancerAttributes")["idle_timeout.timeout_seconds"])
    delay = int(attributes("Targets", "TargetGroupAttributes")["deregistration_delay.timeout_seconds"])
    assert delay > TEMPLATE["Parameters"]["SseSeconds"]["Default"]
    assert LIVE["StopTimeout"] > float(VARIABLES["DRAIN_SECONDS"])
    assert float(VARIABLES["KEEP_ALIVE_SECONDS"]) > idle > 2 * 15
    port = int(ADDRESS["PORT"])
    assert [each["ContainerPort"] for each in LIVE["PortMappings"]] == [port]
    assert RESOURCES["Targets"]["Port"] == port


def test_a_task_is_reached_from_the_load_balancer_alone() -> None:
    [from_balancer] = RESOURCES["TaskGroup"]["SecurityGroupIngress"]
    assert from_balancer["SourceSecurityGroupId"] == {"GetAtt": "LoadBalancerGroup.GroupId"}
    [from_edge] = RESOURCES["LoadBalancerGroup"]["SecurityGroupIngress"]
    assert from_edge["SourcePrefixListId"] == {"Ref": "Sources"}


@pytest.mark.parametrize(("given", "place"), [(ORIGIN, 1), ({}, 2)])
def test_live_is_the_container_or_the_function(given: dict[str, str], place: int) -> None:
    """One origin, so that the edge's function and its tests know one name; an origin is of one kind."""
    assert holds(TEMPLATE["Conditions"]["HasContainer"], DEFAULTS | given) == (place == 1)
    assert resolve(ORIGINS["live"]["DomainName"]["If"][1], ORIGIN) == "balancer.internal"
    vpc_origin = ORIGINS["live"]["VpcOriginConfig"]["If"][1]["VpcOriginId"]
    assert resolve(vpc_origin, ORIGIN) == "vo_1"
    assert resolve(vpc_origin, {"LiveOrigin": ""}) == "", "out of bounds would be an error, used or not"
    assert CHILD["Outputs"]["Origin"]["Value"] == {"Sub": "${LoadBalancer.DNSName},${Origin}"}
    assert re.fullmatch(TEMPLATE["Parameters"]["LiveOrigin"]["AllowedPattern"], ORIGIN["LiveOrigin"])
    kinds = ("VpcOriginConfig", "CustomOriginConfig", "OriginAccessControlId")
    there = [ORIGINS["live"][kind]["If"][place] != {"Ref": "AWS::NoValue"} for kind in kinds]
    assert there == [place == 1, place == 2, place == 2]
