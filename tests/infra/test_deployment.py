"""What a stranger deploys: defaults, environments that the rules allow, and lines that work."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.servers import running, temporary_directory, tidemark_server
from tests.infra.test_edge import DEFAULTS, holds, resolve
from tests.infra.test_template import FUNCTIONS, TEMPLATE

ROOT = Path(__file__).parents[2]
RESOURCES = TEMPLATE["Resources"]


def refusals(parameters: dict[str, str]) -> list[str]:
    """What CloudFormation would say before it makes anything."""
    return [
        assertion["AssertDescription"]
        for rule in TEMPLATE["Rules"].values()
        if "RuleCondition" not in rule or holds(rule["RuleCondition"], parameters)
        for assertion in rule["Assertions"]
        if not holds(assertion["Assert"], parameters)
    ]


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({}, "Everybody could read and write"),
        ({"AllowAnonymous": "true", "AuthSecretName": "/a"}, "contradicts"),
        ({"AuthJwksUrl": "https://id.example"}, "needs AuthAudience"),
        (
            {"AllowAnonymous": "true", "Edge": "false", "EdgeSecretName": "/w"},
            "EdgeSecretName needs Edge=true",
        ),
    ],
    ids=str,
)
def test_parameters_that_contradict_each_other_are_refused(given: dict[str, str], refused: str) -> None:
    assert refused in " ".join(refusals(DEFAULTS | given))


def test_every_parameter_has_a_default_that_its_bounds_allow() -> None:
    for name, each in TEMPLATE["Parameters"].items():
        default = each["Default"]
        assert default in each.get("AllowedValues", [default]), name
        assert each.get("MinValue", default) <= default <= each.get("MaxValue", default), name
        assert re.fullmatch(each.get("AllowedPattern", ".*"), str(default)), name


def test_what_is_stored_is_encrypted_closed_and_tidied_up() -> None:
    table, bucket = RESOURCES["Table"]["Properties"], RESOURCES["Bucket"]["Properties"]
    # DynamoDB's own key is free; KMS bills each use of the one that a specification selects.
    assert table["SSESpecification"] == {
        "If": ["HasManagedKey", {"SSEEnabled": True}, {"Ref": "AWS::NoValue"}]
    }
    [encryption] = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert encryption["ServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
    uploads, removed = bucket["LifecycleConfiguration"]["Rules"]
    assert uploads["Status"] == removed["Status"] == bucket["VersioningConfiguration"]["Status"] == "Enabled"
    assert uploads["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 1}
    # A table can be restored to any moment of the last 35 days.
    assert removed["NoncurrentVersionExpiration"] == {"NoncurrentDays": 36}
    assert removed["ExpiredObjectDeleteMarker"] is True
    [statement] = RESOURCES["BucketPolicy"]["Properties"]["PolicyDocument"]["Statement"]
    assert (statement["Effect"], statement["Condition"]) == (
        "Deny",
        {"Bool": {"aws:SecureTransport": "false"}},
    )
    assert RESOURCES["NotifierFailures"]["Properties"]["SqsManagedSseEnabled"] is True


def test_every_log_ends() -> None:
    """Kept for as long as is asked for. Audit lines are kept for a year, beyond the stack too. Their group is
    named after that one stack, or a later one of its name could not be created."""
    for name, function in FUNCTIONS.items():
        group = RESOURCES[function["LoggingConfig"]["LogGroup"]["Ref"]]
        kept = 365 if name == "WriteFunction" else {"Ref": "LogRetentionDays"}
        assert group["Properties"]["RetentionInDays"] == kept
        policies = {group["DeletionPolicy"], group["UpdateReplacePolicy"]}
        assert policies == ({"RetainExceptOnCreate", "Retain"} if name == "WriteFunction" else {"Delete"})
    assert RESOURCES["WriteLogs"]["Properties"]["LogGroupName"]["Sub"][0].endswith("-${Id}")


def test_lambda_does_not_take_timers_for_a_loop() -> None:
    """The only function that writes to the queue that starts it."""
    writers = {
        name
        for name, function in FUNCTIONS.items()
        if any(event["Type"] == "SQS" for event in function.get("Events", {}).values())
    }
    assert writers == {
        name for name, function in FUNCTIONS.items() if function.get("RecursiveLoop") == "Allow"
    }


def test_lambda_logs_no_line_for_every_invocation() -> None:
    """At INFO the platform writes two lines for each, half a kilobyte: as dear as a DynamoDB write."""
    for function in FUNCTIONS.values():
        assert function["LoggingConfig"]["SystemLogLevel"] == "WARN"
        assert function["LoggingConfig"]["LogFormat"] == "JSON", "levels need it"


def test_every_parameter_is_asked_for_in_a_group_with_a_sentence() -> None:
    interface = TEMPLATE["Metadata"]["AWS::CloudFormation::Interface"]
    grouped = [name for group in interface["ParameterGroups"] for name in group["Parameters"]]
    assert sorted(grouped) == sorted(TEMPLATE["Parameters"])
    assert [name for name, each in TEMPLATE["Parameters"].items() if not each.get("Description")] == []


def test_the_template_is_short_enough_to_be_read() -> None:
    """A parameter more, or a part that could be a stack of its own, is a decision."""
    assert len(TEMPLATE["Parameters"]) <= 25
    assert len((ROOT / "template.yaml").read_text().splitlines()) <= 1500


TRY = ("TryCreate", "TryAppend", "TryRead", "TryFollow")


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with (
        temporary_directory() as directory,
        running(tidemark_server("asgi", directory, SSE_SECONDS="1")) as server,
    ):
        yield server.base_url


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is missing: its lines cannot be run")
@pytest.mark.parametrize("private", ["true", "false"])
def test_the_lines_of_the_outputs_work(base_url: str, private: str) -> None:
    """Pasted one after the other, with a token in the environment or without one."""
    said = [run_line(name, base_url, private=private == "true") for name in TRY]
    created, appended, read, followed = said
    assert re.match(r"HTTP/1.1 20[01] ", created)
    assert appended.startswith("HTTP/1.1 204 ")
    assert read.startswith("HTTP/1.1 200 ")
    assert read.endswith("high tide")
    assert "event: data\ndata:high tide" in followed.replace("data: ", "data:")


def run_line(name: str, base_url: str, *, private: bool) -> str:
    text, values = TEMPLATE["Outputs"][name]["Value"]["Sub"]
    condition, with_token, without = values["Token"]["If"]
    assert condition == "IsPrivate"
    assert values["Base"]["If"][0] == "HasEdge"
    line = text.replace("${Token}", with_token if private else without).replace("${Base}", base_url)
    assert "${" not in line
    ran = subprocess.run(
        ["bash", "-c", line],
        env=os.environ | {"TOKEN": "a.b.c"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return ran.stdout.replace("\r\n", "\n")


def test_the_template_shows_no_secret() -> None:
    """Names of parameters and one word that CloudFormation fills in; nothing that could be pasted."""
    outputs = json.dumps(TEMPLATE["Outputs"])
    assert "resolve:" not in outputs
    metadata = [each.get("Metadata", {}) for each in RESOURCES.values()]
    assert "Secret" not in json.dumps(metadata)
    assert resolve({"Ref": "AuthSecretName"}, DEFAULTS) == ""
