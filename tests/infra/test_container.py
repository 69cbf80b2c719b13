"""The container's template, held against the template around it, the live function and the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.infra.test_edge import DEFAULTS, ORIGINS, holds
from tests.infra.test_template import (
    FUNCTION_GLOBALS,
    FUNCTIONS,
    TEMPLATE,
    CloudFormationLoader,
    statements_of,
)
from tidemark.server.configuration import ContainerConfiguration

ROOT = Path(__file__).parents[2]
CHILD = yaml.load((ROOT / "container" / "template.yaml").read_text(), CloudFormationLoader)
GIVEN = TEMPLATE["Resources"]["LiveContainer"]["Properties"]["Parameters"]
RESOURCES = {name: each.get("Properties", {}) for name, each in CHILD["Resources"].items()}
[LIVE] = RESOURCES["Task"]["ContainerDefinitions"]
VARIABLES = {each["Name"]: each["Value"] for each in LIVE["Environment"]}
COMPLETE = {
    "Container": "true",
    "ContainerImage": "123456789012.dkr.ecr.us-east-1.amazonaws.com/tidemark:1",
    "ContainerVpc": "vpc-1",
    "ContainerSubnets": "subnet-1,subnet-2",
    "ContainerSources": "pl-1",
}


def refusals(given: dict[str, str]) -> int:
    rule = TEMPLATE["Rules"]["WhereTheContainerRuns"]
    parameters = DEFAULTS | given
    if not holds(rule["RuleCondition"], parameters):
        return 0
    return sum(not holds(each["Assert"], parameters) for each in rule["Assertions"])


def test_a_container_needs_an_edge_an_image_and_a_network() -> None:
    assert refusals({}) == 0
    assert refusals(COMPLETE) == 0
    assert refusals(COMPLETE | {"Edge": "false"}) == 1
    for name in COMPLETE.keys() - {"Container"}:
        assert refusals(COMPLETE | {name: ""}) == 1, name


def test_every_parameter_without_a_default_is_given() -> None:
    assert GIVEN.keys() <= CHILD["Parameters"].keys()
    needed = {name for name, each in CHILD["Parameters"].items() if "Default" not in each}
    assert needed <= GIVEN.keys()
    assert CHILD["Parameters"]["EdgeSecret"]["NoEcho"] is True


def test_it_gets_the_functions_variables_by_the_same_values() -> None:
    """What the nested template is given is what it passes on."""
    deployed = FUNCTION_GLOBALS["Environment"]["Variables"]
    own = {"DRAIN_SECONDS", "KEEP_ALIVE_SECONDS"}
    assert VARIABLES.keys() - own <= deployed.keys()
    for name in VARIABLES.keys() - own:
        assert GIVEN[VARIABLES[name]["Ref"]] == deployed[name], name


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
    configuration = ContainerConfiguration.from_environment(
        {name: value for name, value in VARIABLES.items() if isinstance(value, str)}
    )
    assert configuration.drain_seconds == float(VARIABLES["DRAIN_SECONDS"])
    assert {configuration.port} == {each["ContainerPort"] for each in LIVE["PortMappings"]}
    assert RESOURCES["Targets"]["Port"] == configuration.port


def test_only_the_load_balancer_reaches_a_task_and_only_cloudfront_the_load_balancer() -> None:
    assert RESOURCES["LoadBalancer"]["Scheme"] == "internal"
    [from_edge] = RESOURCES["LoadBalancerGroup"]["SecurityGroupIngress"]
    assert from_edge["SourcePrefixListId"] == {"Ref": "Sources"}
    [from_balancer] = RESOURCES["TaskGroup"]["SecurityGroupIngress"]
    assert from_balancer["SourceSecurityGroupId"] == {"GetAtt": "LoadBalancerGroup.GroupId"}


@pytest.mark.parametrize(("container", "place"), [("true", 1), ("false", 2)])
def test_live_is_the_container_or_the_function(container: str, place: int) -> None:
    """One origin, so that the edge's function and its tests know one name; an origin is of one kind."""
    assert holds(TEMPLATE["Conditions"]["HasContainer"], DEFAULTS | {"Container": container}) == (place == 1)
    none = {"Ref": "AWS::NoValue"}
    kinds = {
        name: ORIGINS["live"][name]["If"][place] != none
        for name in ("VpcOriginConfig", "CustomOriginConfig", "OriginAccessControlId")
    }
    assert kinds == {
        "VpcOriginConfig": place == 1,
        "CustomOriginConfig": place == 2,
        "OriginAccessControlId": place == 2,
    }
