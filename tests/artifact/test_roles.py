"""The roles that SAM makes, and the policies of AWS's own that it puts on them unasked."""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.infra.test_template import FUNCTIONS, ROOT

pytestmark = pytest.mark.artifact

SAM_PYTHON = ROOT / ".venv-sam" / "bin" / "python"
#: All of them have `*` for a resource: writing the function's log, and reading a table's stream or a queue,
#: which Lambda itself does, as the function.
LOGS = "AWSLambdaBasicExecutionRole"
STREAM = "AWSLambdaDynamoDBExecutionRole"
QUEUE = "AWSLambdaSQSQueueExecutionRole"


@cache
def expanded(*parameters: str) -> dict[str, Any]:
    """The template as SAM expands it, with these parameters (`Name=value`)."""
    if not SAM_PYTHON.exists():
        pytest.fail("SAM is not there: run `make build` first")
    ran = subprocess.run(
        [str(SAM_PYTHON), str(Path(__file__).with_name("transformed.py")), *parameters],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    made: dict[str, Any] = json.loads(ran.stdout)
    return made


def of_kind(kind: str, *parameters: str) -> dict[str, dict[str, Any]]:
    """Those of the functions that SAM makes. Those of custom resources have a test of their own; CodeDeploy's
    role has AWS's policy."""
    return {
        name: each["Properties"]
        for name, each in expanded(*parameters)["Resources"].items()
        if each["Type"] == kind and not name.startswith(("OriginSecret", "Deployments"))
    }


def test_the_function_of_the_custom_resources_may_check_and_draw_and_nothing_else() -> None:
    role = expanded()["Resources"]["OriginSecretRole"]["Properties"]
    assert "ManagedPolicyArns" not in role
    [policy] = role["Policies"]
    statements = policy["PolicyDocument"]["Statement"]
    *checks, drawing = [each.get("Fn::If", [None, each])[1] for each in statements]
    names = [each["Sid"] for each in checks]
    assert names == ["OwnLog", "FindTable", "Format", "Ceiling", "Room"]
    assert drawing["Action"] == ["ssm:GetParameter", "ssm:PutParameter"]
    assert drawing["Resource"]["Fn::Sub"][0].endswith(":parameter${Name}")


def policies_of(*parameters: str) -> dict[str, set[str]]:
    roles = of_kind("AWS::IAM::Role", *parameters)
    return {
        name.removesuffix("Role"): {arn.rpartition("/")[2] for arn in role["ManagedPolicyArns"]}
        for name, role in roles.items()
    }


def test_awss_own_policies_reach_the_stacks_logs_and_queues_alone() -> None:
    """A role may do what both its policies and its boundary allow."""
    resources = expanded()["Resources"]
    for name, role in of_kind("AWS::IAM::Role").items():
        is_writer = name.startswith("Writ")
        boundary = "WritersBoundary" if is_writer else "Boundary"
        assert role["PermissionsBoundary"] == {"Ref": boundary}
        within, queues, logs = resources[boundary]["Properties"]["PolicyDocument"]["Statement"]
        assert not re.search("logs:|sqs:(?!ListQueues)", json.dumps(within))
        assert "*" not in [*queues["Resource"], *logs["Resource"]]
        function = resources[name.removesuffix("Role")]["Properties"]
        own = {"Fn::GetAtt": [function["LoggingConfig"]["LogGroup"]["Ref"], "Arn"]}
        found = json.dumps(logs["Resource"])
        assert json.dumps(own) in found
        assert ("WriteLogs" in found) == is_writer


def test_of_awss_own_policies_a_function_has_what_it_cannot_do_without() -> None:
    policies = policies_of()
    functions = of_kind("AWS::Lambda::Function")
    assert set(policies) == set(functions) == set(FUNCTIONS)
    assert policies.pop("NotifierFunction") == {LOGS, STREAM}
    assert policies.pop("SubscriptionsFunction") == {LOGS, QUEUE}
    assert list(policies.values()) == [{LOGS}] * len(policies)


CFN_LINT = Path(sys.executable).with_name("cfn-lint")


def complaints(template: dict[str, Any], directory: Path) -> list[tuple[str, list[str]]]:
    """cfn-lint's errors, by the registry's schemas that it carries: the rule, and where it fails."""
    path = directory / "expanded.json"
    path.write_text(json.dumps(template))
    ran = subprocess.run(
        [CFN_LINT, "--non-zero-exit-code", "none", "--format", "json", "--regions", "us-east-1", "--", path],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    found = [(each["Rule"]["Id"], each["Location"]["Path"]) for each in json.loads(ran.stdout)]
    return [(rule, where) for rule, where in found if rule.startswith("E")]


def test_each_resource_fits_its_schema_in_the_registry(tmp_path: Path) -> None:
    template = expanded()
    assert len(template["Resources"]) > 50
    assert complaints(template, tmp_path) == []
