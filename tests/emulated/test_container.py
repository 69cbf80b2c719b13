"""The container's template in the emulated AWS, as far as that goes: everything but CloudFront's VPC origin.

There is no Docker, so no task runs: `tests/local/test_container.py` runs the container's command.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.servers import ROOT, running, temporary_directory
from tests.emulated.deployment import delete
from tests.emulated.emulator import Emulator

pytestmark = pytest.mark.emulated

STACK = "container"


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with temporary_directory() as directory:
        emulator = Emulator(directory, [STACK])
        with running(emulator.server):
            yield emulator


def make_network(ec2: Any) -> dict[str, str]:
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnets = [
        ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{number}.0/24")["Subnet"]["SubnetId"]
        for number in range(2)
    ]
    return {"Vpc": vpc, "Subnets": ",".join(subnets)}


def test_the_stack_is_made_and_deleted(emulator: Emulator) -> None:
    given = make_network(emulator.client("ec2")) | {
        "Edge": "false",
        "Image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/tidemark:1",
        "Sources": "pl-3b927c52",
        "TableName": "tidemark",
        "TableArn": "arn:aws:dynamodb:us-east-1:123456789012:table/tidemark",
        "BucketName": "tidemark-blobs",
        "QueuePrefix": "tidemark-wake-1-",
        "AuthSecretName": "/tidemark/auth-secret",
    }
    cloudformation = emulator.client("cloudformation")
    cloudformation.create_stack(
        StackName=STACK,
        TemplateBody=(ROOT / "container" / "template.yaml").read_text(),
        Parameters=[{"ParameterKey": name, "ParameterValue": value} for name, value in given.items()],
        Capabilities=["CAPABILITY_IAM"],
    )
    cloudformation.get_waiter("stack_create_complete").wait(
        StackName=STACK, WaiterConfig={"Delay": 1, "MaxAttempts": 120}
    )
    resources = cloudformation.describe_stack_resources(StackName=STACK)["StackResources"]
    assert {each["ResourceStatus"] for each in resources} == {"CREATE_COMPLETE"}
    names = {each["LogicalResourceId"]: each["PhysicalResourceId"] for each in resources}
    check_task(emulator.client("ecs"), names)
    check_balancer(emulator.client("elbv2"), names)
    delete(emulator, STACK)


def check_task(ecs: Any, names: dict[str, str]) -> None:
    task = ecs.describe_task_definition(taskDefinition=names["Task"])["taskDefinition"]
    [container] = task["containerDefinitions"]
    variables = {each["name"]: each["value"] for each in container["environment"]}
    assert variables["TABLE_NAME"] == "tidemark"
    assert variables["AUTH_SECRET_NAME"] == "/tidemark/auth-secret"
    assert variables["EDGE_ONLY"] == "false"
    [service] = ecs.list_services(cluster=names["Cluster"])["serviceArns"]
    [found] = ecs.describe_services(cluster=names["Cluster"], services=[service])["services"]
    assert found["desiredCount"] == 1
    assert found["taskDefinition"] == task["taskDefinitionArn"]


def check_balancer(balancing: Any, names: dict[str, str]) -> None:
    [balancer] = balancing.describe_load_balancers(LoadBalancerArns=[names["LoadBalancer"]])["LoadBalancers"]
    assert balancer["Scheme"] == "internal"
    [listener] = balancing.describe_listeners(LoadBalancerArn=names["LoadBalancer"])["Listeners"]
    assert listener["DefaultActions"][0]["TargetGroupArn"] == names["Targets"]
    [targets] = balancing.describe_target_groups(TargetGroupArns=[names["Targets"]])["TargetGroups"]
    assert targets["HealthCheckPath"] == "/v1/health"
