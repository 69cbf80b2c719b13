"""What a stranger deploys: defaults, environments that the rules allow, and lines that work."""

import json
import os
import re
import shutil
import subprocess
import textwrap
from collections.abc import Iterator

import pytest

from tests.conformance.servers import running, temporary_directory, tidemark_server
from tests.infra.test_edge import CONDITIONS, DEFAULTS, holds, resolve
from tests.infra.test_template import FUNCTIONS, ROOT, TEMPLATE, statements_of

pytestmark = pytest.mark.slow

RESOURCES = TEMPLATE["Resources"]
NAMED_SECRET = TEMPLATE["Globals"]["Function"]["Environment"]["Variables"]["AUTH_SECRET_NAME"]


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
        ({"AuthSecretName": ""}, "Everybody could read and write"),
        ({"AllowAnonymous": "true", "AuthSecretName": "/a"}, "contradicts"),
        ({"AuthJwksUrl": "https://id.example"}, "needs AuthAudience"),
        (
            {"AllowAnonymous": "true", "Edge": "false", "EdgeSecretName": "/w"},
            "EdgeSecretName needs Edge=true",
        ),
        (
            {"AllowAnonymous": "true", "Edge": "false", "EdgeName": "a.example,arn:c"},
            "EdgeName needs Edge=true",
        ),
    ],
    ids=str,
)
def test_parameters_that_contradict_each_other_are_refused(given: dict[str, str], refused: str) -> None:
    assert refused in " ".join(refusals(DEFAULTS | given))


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "/tidemark/tides/auth-secret"),
        ({"AuthSecretName": "/tidemark/auth-secret"}, "/tidemark/auth-secret"),
        ({"AuthSecretName": "/mine", "AuthJwksUrl": "https://id.example", "AuthAudience": "a"}, "/mine"),
        ({"AuthJwksUrl": "https://id.example", "AuthAudience": "a"}, ""),
        ({"AllowAnonymous": "true"}, ""),
    ],
    ids=str,
)
def test_a_stacks_secret_has_its_name_and_an_earlier_keeps_its_own(given: dict[str, str], name: str) -> None:
    """SAM keeps the deployed value of a parameter that samconfig.toml does not name, so it does not name this
    one. A token of one stack is worth nothing in another, and no proxy reads another's keys."""
    parameters = DEFAULTS | given | {"AWS::StackName": "tides"}
    assert refusals(parameters) == []
    resolved = [
        resolve(each, parameters)
        for each in (NAMED_SECRET, RESOURCES["Setup"]["Properties"]["AuthSecretName"])
    ]
    assert resolved == [name, name]
    assert holds(TEMPLATE["Conditions"]["HasAuthSecret"], parameters) == bool(name)
    assert "AuthSecretName" not in (ROOT / "samconfig.toml").read_text()
    keys = resolve(RESOURCES["Setup"]["Properties"]["ProxyKeys"], parameters)
    [reads] = [each for each in statements_of(FUNCTIONS["PipeFunction"]) if each["Sid"] == "UpstreamKeys"]
    assert reads["Resource"]["Sub"].replace("${AWS::StackName}", "tides").endswith(f":parameter{keys}*")
    assert "parameter/tidemark/*" not in (ROOT / "template.yaml").read_text()


def test_every_parameter_has_a_default_that_its_bounds_allow() -> None:
    for name, each in TEMPLATE["Parameters"].items():
        default = each["Default"]
        assert default in each.get("AllowedValues", [default]), name
        assert each.get("MinValue", default) <= default <= each.get("MaxValue", default), name
        assert re.fullmatch(each.get("AllowedPattern", ".*"), str(default)), name


def test_what_is_stored_is_kept_and_can_be_restored() -> None:
    """To any moment of the last 35 days, which both the table and the bucket's versions reach back. What
    cfn-lint and checkov ask of them is not said here."""
    table, bucket = RESOURCES["Table"], RESOURCES["Bucket"]
    assert {table["UpdateReplacePolicy"], bucket["UpdateReplacePolicy"]} == {"Retain"}
    assert table["Properties"]["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert table["Properties"]["TimeToLiveSpecification"] == {"AttributeName": "ttl", "Enabled": True}
    _, removed, _ = bucket["Properties"]["LifecycleConfiguration"]["Rules"]
    assert removed["NoncurrentVersionExpiration"]["NoncurrentDays"] > 35


def test_a_key_of_the_customers_encrypts_all_that_is_stored() -> None:
    """Table, bucket, queues and logs. Each role may use it, and no statement names another key."""
    key = {"If": ["HasKey", {"Ref": "KeyArn"}, {"Ref": "AWS::NoValue"}]}
    of_kind = {
        kind: [each["Properties"] for each in RESOURCES.values() if each["Type"] == f"AWS::{kind}"]
        for kind in ("SQS::Queue", "Logs::LogGroup")
    }
    assert [each["KmsMasterKeyId"] for each in of_kind["SQS::Queue"]] == [key] * 3
    assert [each["SqsManagedSseEnabled"] for each in of_kind["SQS::Queue"]] == [
        {"If": ["HasKey", False, True]}
    ] * 3
    assert [each["KmsKeyId"] for each in of_kind["Logs::LogGroup"]] == [key] * 10
    with_key = {"SSEEnabled": True, "SSEType": "KMS", "KMSMasterKeyId": {"Ref": "KeyArn"}}
    assert RESOURCES["Table"]["Properties"]["SSESpecification"]["If"][:2] == ["HasKey", with_key]
    [rule] = RESOURCES["Bucket"]["Properties"]["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    by_default = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": {"Ref": "KeyArn"}}
    assert rule["If"][1] == {"ServerSideEncryptionByDefault": by_default, "BucketKeyEnabled": True}
    roles = {each.get("Ref") or each["If"][1]["Ref"] for each in RESOURCES["UseKey"]["Properties"]["Roles"]}
    assert roles == {f"{name}Role" for name in FUNCTIONS} | {"OriginSecretRole"}
    own = "arn:aws:kms:eu-central-1:123456789012:key/1b2c"
    for given, has_key in (("", False), ("managed", False), (own, True)):
        assert re.fullmatch(TEMPLATE["Parameters"]["KeyArn"]["AllowedPattern"], given)
        assert holds(CONDITIONS["HasKey"], DEFAULTS | {"KeyArn": given}) == has_key


def test_the_writers_url_has_a_function_of_its_own() -> None:
    """A reservation is a limit. A flood at the URL, which anybody may send, leaves other writers theirs."""
    write, writer = (dict(FUNCTIONS[name]) for name in ("WriteFunction", "WriterFunction"))
    assert writer.pop("ReservedConcurrentExecutions") == {"Ref": "WriterConcurrency"}
    assert writer == write
    assert RESOURCES["WriterFunction"]["Condition"] == "HasWriterUrl"
    address = {"TargetFunctionArn": {"GetAtt": "WriterFunction.Arn"}, "AuthType": {"Ref": "WriterAuth"}}
    assert RESOURCES["WriterAddress"]["Properties"] == address
    anybody = {name: each for name, each in RESOURCES.items() if each["Properties"].get("Principal") == "*"}
    assert {each["Condition"] for each in anybody.values()} == {"IsWriterUrlOpen"}
    assert {each["Properties"]["FunctionName"]["Ref"] for each in anybody.values()} == {"WriterFunction"}
    given = DEFAULTS | {"WriterConcurrency": "50"}
    assert holds(CONDITIONS["IsWriterUrlOpen"], given)
    assert not holds(CONDITIONS["IsWriterUrlOpen"], given | {"WriterAuth": "AWS_IAM"})


def test_a_functions_log_ends_has_no_line_for_each_invocation_and_timers_are_no_loop() -> None:
    """The one that is kept for a year, beyond the stack, is named after that stack. At INFO the platform
    writes half a kilobyte for each call. One function writes to the queue that starts it."""
    for name, function in FUNCTIONS.items():
        group = RESOURCES[function["LoggingConfig"]["LogGroup"]["Ref"]]["Properties"]
        kept = 365 if name in ("WriteFunction", "WriterFunction") else {"Ref": "LogRetentionDays"}
        assert group["RetentionInDays"] == kept
        assert function["LoggingConfig"]["SystemLogLevel"] == "WARN"
        triggers = {event["Type"] for event in function.get("Events", {}).values()}
        assert (function.get("RecursiveLoop") == "Allow") == ("SQS" in triggers)
    assert RESOURCES["WriteLogs"]["Properties"]["LogGroupName"]["Sub"][0].endswith("-${Id}")


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with (
        temporary_directory() as directory,
        running(tidemark_server("asgi", directory, SSE_SECONDS="1")) as server,
    ):
        yield server.base_url


def output(name: str, parameters: dict[str, str]) -> str:
    """Of a stack in the region with the longest name."""
    api, region = "0123456789", "ap-southeast-1"
    known = {
        "AWS::StackName": "tidemark",
        "AWS::Region": region,
        "AWS::URLSuffix": "amazonaws.com",
        "Api": api,
    }
    found: str = resolve(TEMPLATE["Outputs"][name]["Value"], DEFAULTS | known | parameters | DISTRIBUTED)
    return found


DISTRIBUTED = {"Distribution.DomainName": "d111111abcdef8.cloudfront.net"}


@pytest.mark.parametrize("given", [{}, {"Edge": "false"}, {"AuthSecretName": "/mine"}], ids=str)
def test_the_first_outputs_are_address_console_and_two_commands_in_one_line(given: dict[str, str]) -> None:
    """SAM wraps a value at 75 characters and at hyphens: a command in two lines does another thing."""
    assert [*TEMPLATE["Outputs"]][:4] == ["Url", "Console", "Token", "Try"]
    values = {name: output(name, given) for name in ("Url", "Console", "Token", "Try")}
    printed = [
        textwrap.wrap(f"{'Value':<20}{each}", width=95, break_long_words=False) for each in values.values()
    ]
    assert [len(lines) for lines in printed] == [1, 1, 1, 1]
    assert values["Token"] == "export TIDEMARK_TOKEN=$(make token STACK=tidemark)"
    assert values["Try"] == f"make smoke URL={values['Url']}"
    assert values["Console"] == f"{values['Url']}/v1/console"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is missing: the commands cannot be run")
def test_the_commands_of_the_outputs_work(base_url: str) -> None:
    """Copied one after the other. The installation that they may begin with is left out."""
    url = output("Url", {})
    environment = os.environ | {"MAKEFLAGS": "LOCAL=", "MAKELEVEL": "0"}
    script = f"{output('Token', {})}; echo $TIDEMARK_TOKEN; {output('Try', {}).replace(url, base_url)}"
    shown = script.replace("make token", "make VENV=echo token")
    ran = subprocess.run(
        ["bash", "-c", shown],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    asked, *smoked = ran.stdout.splitlines()
    assert asked == "-m tidemark.cli token --stack tidemark"
    assert smoked[-1] == "all as expected", ran.stdout


def test_the_template_shows_no_secret() -> None:
    """Names of parameters and one word that CloudFormation fills in; nothing that could be pasted."""
    outputs = json.dumps(TEMPLATE["Outputs"])
    assert "resolve:" not in outputs
    metadata = [each.get("Metadata", {}) for each in RESOURCES.values()]
    assert "Secret" not in json.dumps(metadata)
