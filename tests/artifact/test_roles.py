"""The roles that SAM makes, and the policies of AWS's own that it puts on them unasked."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.infra.test_template import FUNCTIONS

pytestmark = pytest.mark.artifact

ROOT = Path(__file__).parents[2]
SAM_PYTHON = ROOT / ".venv-sam" / "bin" / "python"
#: All of them have `*` for a resource: writing the function's log, reading a table's stream (which
#: Lambda itself does, as the notifier), and writing traces.
LOGS = "AWSLambdaBasicExecutionRole"
STREAM = "AWSLambdaDynamoDBExecutionRole"
TRACES = "AWSXrayWriteOnlyAccess"


@cache
def transformed(*parameters: str) -> dict[str, Any]:
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
    resources: dict[str, Any] = made["Resources"]
    return resources


def of_kind(kind: str, *parameters: str) -> dict[str, dict[str, Any]]:
    return {
        name: each["Properties"] for name, each in transformed(*parameters).items() if each["Type"] == kind
    }


def policies_of(*parameters: str) -> dict[str, set[str]]:
    roles = of_kind("AWS::IAM::Role", *parameters)
    return {
        name.removesuffix("Role"): {arn.rpartition("/")[2] for arn in role["ManagedPolicyArns"]}
        for name, role in roles.items()
    }


def test_of_awss_own_policies_a_function_has_what_it_cannot_do_without() -> None:
    """And may write no traces where nobody asked for them."""
    policies = policies_of()
    assert set(policies) == set(FUNCTIONS)
    assert policies.pop("NotifierFunction") == {LOGS, STREAM}
    assert list(policies.values()) == [{LOGS}] * len(policies)


def test_traces_bring_the_right_to_write_them() -> None:
    policies = policies_of("Tracing=Active")
    assert policies.pop("NotifierFunction") == {LOGS, STREAM, TRACES}
    assert list(policies.values()) == [{LOGS, TRACES}] * len(policies)
    functions = of_kind("AWS::Lambda::Function", "Tracing=Active")
    assert [each["TracingConfig"]["Mode"] for each in functions.values()] == [{"Ref": "Tracing"}] * len(
        FUNCTIONS
    )


def test_without_them_lambda_is_told_nothing() -> None:
    """`Disabled` is a word of SAM's, for which there is none of Lambda's."""
    functions = of_kind("AWS::Lambda::Function")
    assert set(functions) == set(FUNCTIONS)
    assert not any("TracingConfig" in each for each in functions.values())
