"""The container's template in the emulated AWS, as far as that goes: everything but CloudFront's VPC origin.

There is no Docker, so no task runs: `tests/local/test_container.py` runs the container's command.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.servers import ROOT, running, temporary_directory
from tests.emulated.deployment import delete
from tests.emulated.emulator import REGION, SAM, Emulator
from tidemark.ops import deploy as guided

pytestmark = pytest.mark.emulated

MAIN = {"stack_name": "tides", "region": REGION}
STACK = "tides-container"
OUTPUTS = {
    "TableName": "tidemark",
    "TableArn": "arn:aws:dynamodb:us-east-1:123456789012:table/tidemark",
    "BucketName": "tidemark-blobs",
    "QueuePrefix": "tidemark-wake-1-",
}


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


def test_the_stack_is_made_as_make_deploy_makes_it(
    emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the main one, whose outputs and parameters it takes; by the SAM CLI."""
    own = make_network(emulator.client("ec2")) | {
        "Image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/tidemark:1",
        "Sources": "pl-3b927c52",
    }
    config = tmp_path / "samconfig.toml"
    config.write_text("version = 0.1\n" + guided.FirstDeployment("tides", REGION, {}).as_toml())
    overrides = " ".join(f"{name}={value}" for name, value in own.items())
    with config.open("a") as file:
        file.write(f'[container.deploy.parameters]\nparameter_overrides = "{overrides}"\n')
    monkeypatch.chdir(ROOT)
    for name, value in {**emulator.environment, "SAM": str(SAM / "sam"), "SAM_CLI_TELEMETRY": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(guided, "deployed_outputs", lambda kept: OUTPUTS if kept == MAIN else {})
    main = {"Edge": "false", "AuthSecretName": "/tidemark/auth-secret", "LiveOrigin": ""}
    how = ["--config-file", str(config), "--no-confirm-changeset"]
    assert guided.deploy_parts(["container"], MAIN, main, config, how) == 0
    assert guided.deployed_parameters({**MAIN, "stack_name": STACK}).items() >= own.items()
    cloudformation = emulator.client("cloudformation")
    [made] = cloudformation.describe_stacks(StackName=STACK)["Stacks"]
    assert {"Key": "part", "Value": "container"} in made["Tags"], "a bill tells its costs apart"
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
