"""The setup function, called as CloudFormation calls it: what it draws, what it refuses, and what it says."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from functions.setup import app
from tests.http_server import Handler, serving
from tests.infra.test_template import FUNCTIONS, ROOT, TEMPLATE
from tidemark.log.schema import FORMAT_EPOCH, encode_format

RESOURCES = TEMPLATE["Resources"]
SECRET = "/tidemark/tides/auth-secret"
REQUEST = {
    "RequestType": "Create",
    "StackId": "arn:aws:cloudformation:us-east-1:123456789012:stack/tidemark/0b1c2d3e",
    "RequestId": "request-1",
    "LogicalResourceId": "Setup",
}
SETUP = REQUEST | {"ResourceType": "Custom::Setup"}
ORIGIN_SECRET = REQUEST | {"ResourceType": "Custom::OriginSecret", "ResourceProperties": {}}
PROPERTIES = {"AuthSecretName": SECRET, "ReaderConcurrency": "0", "Sockets": "true"}
PROPERTIES |= {"CacheKey": "", "ProxyAllow": "", "ProxyKeys": "/tidemark/tides/proxy/"}
PROPERTIES |= {"TableUnitsPerSecond": "0", "WriterConcurrency": "0"}


class FakeAws:
    """SSM, Lambda, DynamoDB and CloudFormation, as far as they are asked."""

    def __init__(self) -> None:
        self.has_table = True
        self.refusals: list[str] = []
        self.ceiling: dict[str, int] = {}
        self.updates: list[dict[str, Any]] = []
        self.secrets: dict[str, str] = {}
        self.limits = {"ConcurrentExecutions": 1000, "UnreservedConcurrentExecutions": 1000}
        self.format_epoch = FORMAT_EPOCH
        self.policies: list[dict[str, Any]] = []

    def list_cache_policies(self, **named: str) -> dict[str, Any]:
        assert named == {"Type": "custom"}
        return {"CachePolicyList": {"Items": [{"CachePolicy": each} for each in self.policies]}}

    def create_cache_policy(self, **named: Any) -> dict[str, Any]:
        self.policies.append(named | {"Id": f"policy-{len(self.policies)}"})
        return {"CachePolicy": self.policies[-1]}

    def get_parameter(self, **named: str) -> None:
        if named["Name"] not in self.secrets:
            raise ClientError({"Error": {"Code": "ParameterNotFound"}}, "GetParameter")

    def put_parameter(self, **named: Any) -> None:
        assert (named["Type"], named["Overwrite"]) == ("SecureString", False)
        assert named["Name"] not in self.secrets
        self.secrets[named["Name"]] = named["Value"]

    def get_account_settings(self) -> dict[str, Any]:
        return {"AccountLimit": self.limits}

    def describe_stack_resource(self, **named: Any) -> dict[str, Any]:
        assert named == {"StackName": REQUEST["StackId"], "LogicalResourceId": "Table"}
        if self.refusals or not self.has_table:
            code = self.refusals.pop() if self.refusals else "ValidationError"
            raise ClientError({"Error": {"Code": code}}, "DescribeStackResource")
        return {"StackResourceDetail": {"PhysicalResourceId": "tides"}}

    def describe_table(self, **named: Any) -> dict[str, Any]:
        return {"Table": named | {"OnDemandThroughput": self.ceiling}}

    def update_table(self, **named: Any) -> None:
        self.updates.append(named)

    def get_waiter(self, name: str) -> Any:
        assert name == "table_exists"
        return SimpleNamespace(wait=self.describe_table)

    def get_item(self, **named: Any) -> dict[str, Any]:
        assert named["TableName"] == "tides"
        return {"Item": encode_format(self.format_epoch)}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> FakeAws:
    aws = FakeAws()
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setattr(boto3, "client", lambda _service: aws)
    return aws


class CloudFormation:
    """A server in its place, which keeps what it is sent."""

    def __init__(self, url: str, received: list[dict[str, Any]]) -> None:
        self.url, self.received = url, received

    def answer_to(self, request: dict[str, Any], **properties: str) -> dict[str, Any]:
        given = {"ResourceProperties": PROPERTIES | properties} | request | {"ResponseURL": self.url}
        app.handler(given, None)
        answer = self.received.pop()
        assert [answer[name] for name in ("StackId", "RequestId")] == [REQUEST["StackId"], "request-1"]
        return answer


@pytest.fixture
def cloudformation() -> Iterator[CloudFormation]:
    received: list[dict[str, Any]] = []

    class Address(Handler):
        def answer(self) -> None:
            assert not self.headers["Content-Type"], "the presigned address is signed without one"
            received.append(json.loads(self.received()))
            self.respond(200)

    with serving(Address) as url:
        yield CloudFormation(f"{url}/a?b=c", received)


def test_the_origin_secret_is_drawn_when_the_stack_is_created(cloudformation: CloudFormation) -> None:
    """256 random bits that CloudFormation shows to nobody, different in each stack."""
    first, second = (cloudformation.answer_to(ORIGIN_SECRET) for _ in range(2))
    assert re.fullmatch("[0-9a-f]{64}", first["Data"]["Value"])
    assert first["Data"]["Value"] != second["Data"]["Value"]
    assert first["PhysicalResourceId"] != second["PhysicalResourceId"]
    for answer in (first, second):
        assert (answer["Status"], answer["NoEcho"]) == ("SUCCESS", True)
        assert answer["Data"]["Value"] not in answer["PhysicalResourceId"]


@pytest.mark.parametrize("kind", ["Update", "Delete"])
def test_a_resource_keeps_its_name_until_it_is_deleted(
    aws: FakeAws, cloudformation: CloudFormation, kind: str
) -> None:
    """Another name would make CloudFormation delete the one before, another property draw another origin
    secret. A function that has another name would leave the secret of a stack behind."""
    assert RESOURCES["OriginSecret"]["Properties"].keys() == {"ServiceToken", "ServiceTimeout"}
    for name in ("OriginSecret", "Setup"):
        assert RESOURCES[name]["Properties"]["ServiceToken"] == {"GetAtt": "OriginSecretFunction.Arn"}
        assert RESOURCES[name]["Properties"]["ServiceTimeout"] > 50
    for request in (ORIGIN_SECRET, SETUP):
        told = cloudformation.answer_to(request | {"RequestType": kind, "PhysicalResourceId": "made-1"})
        assert (told["Status"], told["PhysicalResourceId"]) == ("SUCCESS", "made-1")


def test_the_secret_for_tokens_is_written_once(aws: FakeAws, cloudformation: CloudFormation) -> None:
    """A later stack of the same name takes over the one that stayed. A stack that needs none has none."""
    assert cloudformation.answer_to(SETUP, AuthSecretName="")["Status"] == "SUCCESS"
    assert aws.secrets == {}
    assert cloudformation.answer_to(SETUP)["Status"] == "SUCCESS"
    [drawn] = aws.secrets.values()
    assert re.fullmatch("[0-9a-f]{64}", drawn)
    assert cloudformation.answer_to(SETUP | {"RequestType": "Delete"})["Status"] == "SUCCESS"
    assert cloudformation.answer_to(SETUP)["Status"] == "SUCCESS"
    assert aws.secrets == {SECRET: drawn}


def test_the_digest_changes_with_properties_alone(aws: FakeAws, cloudformation: CloudFormation) -> None:
    """By it versions of `write` and `read` are published."""
    first, second, again = (cloudformation.answer_to(SETUP, Release=each)["Data"]["Digest"] for each in "aba")
    assert first == again != second


def test_a_stack_with_a_secret_is_given_no_other_one(aws: FakeAws, cloudformation: CloudFormation) -> None:
    """A misspelt name would end every token."""
    update = SETUP | {"RequestType": "Update", "PhysicalResourceId": "made-1"}
    asked = update | {"OldResourceProperties": PROPERTIES}
    refused = cloudformation.answer_to(asked, AuthSecretName="/auth-secert")
    assert refused["Status"] == "FAILED"
    assert "there is no /auth-secert. Make it: aws ssm put-parameter " in refused["Reason"]
    assert f"To keep the tokens of this stack: AuthSecretName={SECRET}" in refused["Reason"]
    was_open = update | {"OldResourceProperties": PROPERTIES | {"AuthSecretName": ""}}
    assert cloudformation.answer_to(was_open)["Status"] == "SUCCESS"
    assert [*aws.secrets] == [SECRET]


def test_the_layer_describes_each_service_that_setup_calls() -> None:
    """The layer has no other of botocore's four hundred descriptions: the call would fail on AWS alone."""
    called = re.findall(r'client\("(\w+)"\)', Path(app.__file__).read_text())
    [described] = re.findall(r"^SERVICES := (.*)$", (ROOT / "shared" / "Makefile").read_text(), re.MULTILINE)
    assert set(called) - set(described.split()) == set()


@pytest.mark.parametrize(
    ("region", "given", "status"),
    [
        ("eu-south-2", {"CacheKey": "private"}, "FAILED"),
        ("eu-south-2", {"WriterConcurrency": "5"}, "FAILED"),
        ("eu-south-2", {}, "SUCCESS"),
        ("eu-south-1", {"CacheKey": "private", "WriterConcurrency": "5"}, "SUCCESS"),
    ],
    ids=str,
)
def test_a_region_without_urls_of_functions_takes_a_stack_that_needs_none(
    aws: FakeAws, cloudformation: CloudFormation, monkeypatch: pytest.MonkeyPatch,
    *, region: str, given: dict[str, str], status: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("AWS_REGION", region)
    answer = cloudformation.answer_to(SETUP, **given)
    assert answer["Status"] == status
    assert (f"no function URLs in {region}" in answer.get("Reason", "")) == (status == "FAILED")
    for name, each in RESOURCES.items():
        assert "FunctionUrlConfig" not in each.get("Properties", {}), "SAM makes that URL in every stack"
        if each["Type"] == "AWS::Lambda::Url":
            assert each["Condition"] == {"LiveFunctionUrl": "HasEdge"}.get(name, "HasWriterUrl")


def test_a_proxy_names_keys_of_its_own_stack_alone(aws: FakeAws, cloudformation: CloudFormation) -> None:
    """Its role may read no other: each call would be an error, long after the deployment."""
    own, other = "/tidemark/tides/proxy/openai", "/tidemark/proxy/openai"
    entries = "https://a.example/* name=a key=ssm:{}, https://b.example/* key=ssm:{}"
    allowed = cloudformation.answer_to(SETUP, ProxyAllow=entries.format(own, own))
    refused = cloudformation.answer_to(SETUP, ProxyAllow=entries.format(own, other))
    assert (allowed["Status"], refused["Status"]) == ("SUCCESS", "FAILED")
    assert f"the key {other}, and " in refused["Reason"]
    assert f"Copy it to {own}" in refused["Reason"]


def test_stacks_of_an_account_share_cache_policies(aws: FakeAws, cloudformation: CloudFormation) -> None:
    """An account has twenty, so a policy for each stack would end at the twentieth."""
    made = [
        cloudformation.answer_to(SETUP, CacheKey=kind)["Data"]["CachePolicyId"]
        for kind in ("private", "private", "public", "")
    ]
    assert made == ["policy-0", "policy-0", "policy-1", ""]
    assert not {"AWS::CloudFront::CachePolicy", "AWS::CloudFront::OriginRequestPolicy"} & {
        each["Type"] for each in RESOURCES.values()
    }


def test_a_release_that_cannot_read_the_stored_format_is_refused_before_any_function_changes(
    aws: FakeAws, cloudformation: CloudFormation
) -> None:
    """Each release is another layer, so it is checked; every function depends on that. A new stack has no
    table to read."""
    aws.format_epoch = FORMAT_EPOCH + 1
    refused = cloudformation.answer_to(SETUP)
    assert refused["Status"] == "FAILED"
    assert f"the table needs {FORMAT_EPOCH + 1}" in refused["Reason"]
    assert RESOURCES["Setup"]["Properties"]["Release"] == {"Ref": "SharedLayer"}
    assert [name for name in FUNCTIONS if "Setup" not in RESOURCES[name]["DependsOn"]] == []
    aws.has_table = False
    assert cloudformation.answer_to(SETUP)["Status"] == "SUCCESS"


@pytest.mark.parametrize(("refusals", "status"), [(4, "SUCCESS"), (5, "FAILED")])
def test_a_right_of_the_role_may_hold_only_seconds_later(
    aws: FakeAws, cloudformation: CloudFormation, monkeypatch: pytest.MonkeyPatch, refusals: int, status: str
) -> None:
    """An upgrade gives the role a right that the release before did not need."""
    monkeypatch.setattr(app, "_PAUSES", (0,) * len(app._PAUSES))
    aws.refusals = ["AccessDenied"] * refusals
    assert cloudformation.answer_to(SETUP)["Status"] == status


@pytest.mark.parametrize(
    ("units", "ceiling", "updates"), [("9→0", 9, 1), ("9→0", -1, 0), ("9→5", 9, 0), ("0→0", -1, 0)]
)
def test_a_ceiling_that_is_no_longer_wanted_is_taken_off(
    aws: FakeAws, cloudformation: CloudFormation, units: str, ceiling: int, updates: int
) -> None:
    """DynamoDB keeps one that an update does not name, and CloudFormation's schema begins at 1."""
    before, now = units.split("→")
    aws.secrets[SECRET] = "kept"
    aws.ceiling = {"MaxReadRequestUnits": ceiling, "MaxWriteRequestUnits": ceiling}
    old = {"OldResourceProperties": PROPERTIES | {"TableUnitsPerSecond": before}}
    update = SETUP | old | {"RequestType": "Update", "PhysicalResourceId": "made-1"}
    assert cloudformation.answer_to(update, TableUnitsPerSecond=now)["Status"] == "SUCCESS"
    removed = {"MaxReadRequestUnits": -1, "MaxWriteRequestUnits": -1}
    assert aws.updates == [{"TableName": "tides", "OnDemandThroughput": removed}] * updates
    assert RESOURCES["Setup"]["Properties"]["TableUnitsPerSecond"] == {"Ref": "TableUnitsPerSecond"}


def test_nothing_that_is_kept_is_made_before_the_checks() -> None:
    """A table that is protected cannot be deleted, so the stack of a refused creation would be stuck."""
    kept = {name for name, each in RESOURCES.items() if each.get("DeletionPolicy") == "RetainExceptOnCreate"}
    assert kept == {"Table", "Bucket", "WriteLogs"}
    assert {RESOURCES[name]["DependsOn"] for name in ("Table", "Bucket")} == {"Setup"}
    before = ("Setup", "OriginSecretFunction", "OriginSecretRole", "SharedLayer", "JanitorLogs")
    assert not re.search(
        r'"(Table|Bucket)["$.]|\$\{(Table|Bucket)\b', json.dumps([RESOURCES[name] for name in before])
    )


@pytest.mark.parametrize(
    ("limit", "unreserved", "advice"),
    [
        pytest.param(1000, 1000, "ReaderConcurrency=166", id="half of the account, for three functions"),
        pytest.param(175, 175, "ReaderConcurrency=25", id="the smallest account with room"),
        pytest.param(1000, 300, "ReaderConcurrency=66", id="what others have left, but for 100"),
        pytest.param(1000, 140, "SseSeconds=5", id="too little is left"),
        pytest.param(10, 10, "SseSeconds=5", id="a new account"),
    ],
)
def test_an_account_in_which_readers_stop_writers_is_named(
    aws: FakeAws, cloudformation: CloudFormation, limit: int, unreserved: int, advice: str
) -> None:
    aws.limits = {"ConcurrentExecutions": limit, "UnreservedConcurrentExecutions": unreserved}
    said = cloudformation.answer_to(SETUP)["Data"]["Readers"]
    assert f"runs {limit} functions at once" in said
    assert advice in said


@pytest.mark.parametrize(
    ("readers", "writers", "message"),
    [
        ("100", "50", "At most 300 of the account's 1000"),
        ("0", "50", "stop every writer. Bound them: ReaderConcurrency=166"),
        ("0", "600", "stop every writer. Bound them: ReaderConcurrency=100"),
    ],
)
def test_the_output_counts_readers_without_the_writers(
    aws: FakeAws, cloudformation: CloudFormation, readers: str, writers: str, message: str
) -> None:
    made = cloudformation.answer_to(SETUP, ReaderConcurrency=readers, WriterConcurrency=writers)
    assert message in made["Data"]["Readers"]


def test_a_reservation_beyond_the_quota_is_refused(aws: FakeAws, cloudformation: CloudFormation) -> None:
    """What the stack has reserved before is its own."""
    readers = cloudformation.answer_to(SETUP, ReaderConcurrency="300")["Data"]["Readers"]
    assert "At most 900 of the account's 1000" in readers
    assert cloudformation.answer_to(SETUP, ReaderConcurrency="301")["Status"] == "FAILED"
    assert (
        cloudformation.answer_to(SETUP, ReaderConcurrency="300", WriterConcurrency="1")["Status"] == "FAILED"
    )
    assert cloudformation.answer_to(SETUP, ReaderConcurrency="450", Sockets="false")["Status"] == "SUCCESS"
    aws.limits = {"ConcurrentExecutions": 10, "UnreservedConcurrentExecutions": 10}
    refused = cloudformation.answer_to(SETUP, ProxyConcurrency="50")
    assert "ProxyConcurrency would reserve 100 concurrent executions" in refused["Reason"], "a new account"
    aws.limits = {"ConcurrentExecutions": 1000, "UnreservedConcurrentExecutions": 100}
    refused = cloudformation.answer_to(SETUP, ReaderConcurrency="300")
    assert "would reserve 900 concurrent executions, and this account can reserve 0 " in refused["Reason"]
    before = {"OldResourceProperties": PROPERTIES | {"ReaderConcurrency": "300"}}
    assert cloudformation.answer_to(SETUP | before, ReaderConcurrency="300")["Status"] == "SUCCESS"
