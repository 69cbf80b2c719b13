"""What the template must keep saying, held against the code it deploys."""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import uuid
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from tidemark.aws.sqs import Queues
from tidemark.delivery.attend import SLOW_SLOTS
from tidemark.local.template import load_template, match_route
from tidemark.local.triggers import matches
from tidemark.log.records import Due, DueKind
from tidemark.log.schema import due_key, log_pk, stream_key, subscription_key, table_definition, wait_pk
from tidemark.log.tails import MAX_AGE_MS
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.stream_registry import written_by
from tidemark.settings import Settings
from tidemark.wake.attention import changed_from_record
from tidemark.wake.notifier import message_from_record

ROOT = Path(__file__).parents[2]
EVENTS = sorted((ROOT / "events").glob("*.json"))
HTTP_API_SECONDS = 30
QUEUE_PREFIX = "tidemark-wake-${Id}-"
STACK = {"Id": {"Select": [2, {"Split": ["/", {"Ref": "AWS::StackId"}]}]}}


class CloudFormationLoader(yaml.SafeLoader):
    """Reads `!Sub x` as `{"Sub": x}`, whatever the tag."""


def read_tag(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        return {tag: loader.construct_scalar(node)}
    if isinstance(node, yaml.SequenceNode):
        return {tag: loader.construct_sequence(node, deep=True)}
    assert isinstance(node, yaml.MappingNode)
    return {tag: loader.construct_mapping(node, deep=True)}


CloudFormationLoader.add_multi_constructor("!", read_tag)

TEMPLATE = yaml.load((ROOT / "template.yaml").read_text(), CloudFormationLoader)
FUNCTION_GLOBALS = TEMPLATE["Globals"]["Function"]
FUNCTIONS = {
    name: resource["Properties"]
    for name, resource in TEMPLATE["Resources"].items()
    if resource["Type"] == "AWS::Serverless::Function"
}


TRIGGER = FUNCTIONS["NotifierFunction"]["Events"]["Appended"]["Properties"]


API = TEMPLATE["Resources"]["Api"]["Properties"]
ROUTES = [
    (path if path == "$default" else f"{method.upper()} {path}", f"{reference.rpartition('/')[2]}Function")
    for path, operations in API["DefinitionBody"]["paths"].items()
    for method, operation in operations.items()
    if method != "parameters"
    for reference in operation["x-amazon-apigateway-integration"].values()
]


def statements_of(function: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that hang on a condition included."""
    return [
        statement["If"][1] if "If" in statement else statement
        for policy in function["Policies"]
        for statement in policy["Statement"]
    ]


ALLOWED = [
    pytest.param(statement, id=f"{name}-{statement['Sid']}")
    for name, function in FUNCTIONS.items()
    for statement in statements_of(function)
]
ARN_OF_PARAMETERS = "arn:${AWS::Partition}:ssm:${AWS::Region}:${AWS::AccountId}:parameter"
SECRETS = [
    {
        "If": [
            f"Has{name}",
            {"Sub": ARN_OF_PARAMETERS + f"${{{name}Name}}"},
            {"Ref": "AWS::NoValue"},
        ]
    }
    for name in ("AuthSecret", "EdgeSecret")
]
#: The private keys of webhooks: the first webhook makes one, and only the function that signs reads it.
SIGNING_KEYS = {"Sub": [ARN_OF_PARAMETERS + "/tidemark/${Id}/webhook-keys/*", STACK]}
#: A secret itself is no value of a template's: where it is kept is. The HTTP API has its own limit.
#: A stack packs what is an hour old, and an event stream that cannot be streamed waits for a second.
LOCAL_ONLY = {"AUTH_SECRET", "PACK_AFTER_SECONDS", "REQUESTS_PER_SECOND", "SSE_BUFFERED_SECONDS"}


def variables_of(function: dict[str, Any]) -> dict[str, Any]:
    return function.get("Environment", {}).get("Variables", {})


class Recorded(dict[str, str]):
    """An empty environment that remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


def test_the_functions_get_exactly_the_variables_that_settings_read() -> None:
    """A variable misspelt on either side would silently mean its default."""
    environment = Recorded()
    Settings.from_environment(environment)
    # The distribution is made after the functions behind it: only one that is not behind it knows its name.
    assert set(FUNCTION_GLOBALS["Environment"]["Variables"]) == environment.asked - LOCAL_ONLY - {
        "PUBLIC_URL"
    }
    own = {name for function in FUNCTIONS.values() for name in variables_of(function)}
    assert [name for name in own if not name.startswith("AWS_")] == ["PUBLIC_URL"]
    assert set(variables_of(FUNCTIONS["SubscriptionsFunction"])) == {"PUBLIC_URL"}


def test_the_table_is_the_one_the_code_creates_locally() -> None:
    """Keys, billing and stream view: what the tests ran against is what is deployed."""
    local = table_definition("t")
    deployed = TEMPLATE["Resources"]["Table"]["Properties"]
    for name in ("BillingMode", "AttributeDefinitions", "KeySchema"):
        assert deployed[name] == local[name]
    assert local["StreamSpecification"] == {"StreamEnabled": True} | deployed["StreamSpecification"]
    assert deployed["StreamSpecification"] == {"StreamViewType": "KEYS_ONLY"}


def test_what_is_kept_is_protected() -> None:
    """Recoverable to any second, expiring by the attribute the schema writes, private, kept."""
    table, bucket = TEMPLATE["Resources"]["Table"], TEMPLATE["Resources"]["Bucket"]
    assert table["Properties"]["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert table["Properties"]["TimeToLiveSpecification"] == {"AttributeName": "ttl", "Enabled": True}
    assert set(bucket["Properties"]["PublicAccessBlockConfiguration"].values()) == {True}
    assert {table["UpdateReplacePolicy"], bucket["UpdateReplacePolicy"]} == {"Retain"}


@pytest.mark.parametrize("statement", ALLOWED)
def test_no_function_may_do_or_touch_everything(statement: dict[str, Any]) -> None:
    """Actions by name, on the stack's own table, bucket and queues."""
    actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
    assert [action for action in actions if "*" in action] == []
    if actions == ["sqs:ListQueues"]:
        assert statement["Resource"] == "*", "AWS knows no narrower one"
        return
    if statement["Resource"] == SIGNING_KEYS:
        assert actions in (["ssm:GetParameter"], ["ssm:PutParameter"])
        return
    if actions == ["ssm:GetParameter"]:
        assert statement["Resource"] == SECRETS
        return
    if actions == ["sqs:SendMessage"] and statement["Resource"] == {"GetAtt": "SubscriptionsQueue.Arn"}:
        return
    assert statement["Resource"] in (
        {"GetAtt": "Table.Arn"},
        {"GetAtt": "Bucket.Arn"},
        {"Sub": "${Bucket.Arn}/*"},
        {"Sub": "${Bucket.Arn}/log/*"},
        {"Sub": [f"arn:${{AWS::Partition}}:sqs:${{AWS::Region}}:${{AWS::AccountId}}:{QUEUE_PREFIX}*", STACK]},
    )


def test_the_stack_knows_its_own_queues() -> None:
    """By a prefix no other stack has: its janitor removes what begins with it. Names have a limit, too."""
    assert FUNCTION_GLOBALS["Environment"]["Variables"]["QUEUE_PREFIX"] == {"Sub": [QUEUE_PREFIX, STACK]}
    an_id = str(uuid.uuid4())
    queues = Queues(Recording, QUEUE_PREFIX.replace("${Id}", an_id))
    assert len(queues.create(2**41)) <= 80


class Recording:
    """An SQS that answers a queue's name in place of its URL."""

    def create_queue(self, QueueName: str, Attributes: dict[str, str]) -> dict[str, str]:  # noqa: N803 - SQS's own
        return {"QueueUrl": QueueName}


@pytest.mark.parametrize("name", ["ReadFunction", "LiveFunction", "NotifierFunction"])
def test_readers_and_the_notifier_write_waiters_alone(name: str) -> None:
    """They register and clean up; the log is not theirs to write."""
    changing = {"dynamodb:PutItem", "dynamodb:BatchWriteItem", "dynamodb:DeleteItem"}
    for statement in statements_of(FUNCTIONS[name]):
        if changing & set(statement["Action"]):
            assert statement["Condition"] == {
                "ForAllValues:StringLike": {"dynamodb:LeadingKeys": [f"{wait_pk(0)[:-1]}*"]}
            }


@pytest.mark.parametrize("name", ["ReadFunction", "LiveFunction"])
def test_a_read_updates_items_of_streams_alone(name: str) -> None:
    """It renews a time to live."""
    [renew] = [each for each in statements_of(FUNCTIONS[name]) if "dynamodb:UpdateItem" in each["Action"]]
    [pattern] = renew["Condition"]["ForAllValues:StringLike"]["dynamodb:LeadingKeys"]
    assert renew["Action"] == "dynamodb:UpdateItem"
    key = StreamKey("v1", "a")
    assert fnmatch(stream_key(key)["pk"]["S"], pattern)
    assert not any(fnmatch(each, pattern) for each in (log_pk(key, "1"), wait_pk(0), "buckets", "due/p"))


def test_the_packer_touches_logs_alone() -> None:
    """Subscriptions, waiters, keys and the rest of the queue are not its business."""
    resource = TEMPLATE["Resources"]["PackerFunction"]
    table, bucket = statements_of(resource["Properties"])
    key, due = StreamKey("v1", "a"), Due(DueKind.PACK, StreamKey("v1", "a"), "1", 0)
    patterns = table["Condition"]["ForAllValues:StringLike"]["dynamodb:LeadingKeys"]
    needed = [log_pk(key, "1"), stream_key(key)["pk"]["S"], due_key(due)["pk"]["S"]]
    assert all(any(fnmatch(each, pattern) for pattern in patterns) for each in needed)
    others = [
        wait_pk(0),
        subscription_key("s")["pk"]["S"],
        due_key(replace(due, kind=DueKind.EXPIRE))["pk"]["S"],
    ]
    assert not any(fnmatch(each, pattern) for each in others for pattern in patterns)
    assert bucket["Resource"] == {"Sub": "${Bucket.Arn}/log/*"}


def test_the_packer_has_one_round_at_a_time() -> None:
    packer = FUNCTIONS["PackerFunction"]
    [each] = packer["Events"].values()
    assert each["Properties"]["Schedule"] == "rate(5 minutes)"
    assert packer["Timeout"] < 5 * 60
    assert packer["EventInvokeConfig"]["MaximumRetryAttempts"] == 0


def test_the_trigger_rings_for_new_batches_and_gives_up_in_time() -> None:
    """One bad batch must not hold a shard up for a day, and no failure goes unseen."""
    trigger = FUNCTIONS["NotifierFunction"]["Events"]["Appended"]["Properties"]
    assert trigger["StartingPosition"] == "TRIM_HORIZON"
    assert trigger["MaximumBatchingWindowInSeconds"] == 0
    assert trigger["ParallelizationFactor"] == 10
    assert trigger["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert trigger["BisectBatchOnFunctionError"] is True
    # Subscriptions depend on each record: a failure of SQS for an hour loses none.
    assert trigger["MaximumRetryAttempts"] == 1000
    assert trigger["MaximumRecordAgeInSeconds"] == 3600
    assert trigger["DestinationConfig"]["OnFailure"]["Type"] == "SQS"


def test_the_triggers_filter_and_the_code_mean_the_same_records() -> None:
    """What the filter lets through is what the notifier sends messages for, no less and no more."""
    filters = FUNCTIONS["NotifierFunction"]["Events"]["Appended"]["Properties"]["FilterCriteria"]["Filters"]
    patterns = [json.loads(each["Pattern"]) for each in filters]
    subscription = subscription_key("s")["pk"]["S"]
    batch, a_stream = log_pk(StreamKey("v1", "a"), "inc"), "bucket/v1"
    for name, pk, sk in itertools.product(
        ("INSERT", "MODIFY", "REMOVE"),
        (batch, a_stream, "bucket/v1-other", "bucket/agents", wait_pk(1), "logs/x", subscription),
        ("0000000000000000", "stream/a"),
    ):
        if pk == batch and sk == "stream/a":
            continue
        keys = {"pk": {"S": pk}, "sk": {"S": sk}}
        record = {"eventName": name, "dynamodb": {"Keys": keys}}
        is_wanted = (
            message_from_record(record) is not None
            or changed_from_record(record) is not None
            or bool(written_by([record]).items)
        )
        assert any(matches(pattern, record) for pattern in patterns) == is_wanted, record


def test_the_live_function_streams() -> None:
    """Behind the adapter, which finds the application's port and a page that says it is up."""
    live = FUNCTIONS["LiveFunction"]
    assert live["FunctionUrlConfig"] == {"AuthType": "AWS_IAM", "InvokeMode": "RESPONSE_STREAM"}
    variables = variables_of(live)
    assert variables["AWS_LAMBDA_EXEC_WRAPPER"] == "/opt/bootstrap"
    assert variables["AWS_LWA_INVOKE_MODE"] == "response_stream"
    assert variables["AWS_LWA_READINESS_CHECK_PATH"] == "/v1/health"
    assert TEMPLATE["Parameters"]["SseSeconds"]["MaxValue"] < live["Timeout"]
    [adapter] = live["Layers"]
    condition, own, public = adapter["If"]
    assert (condition, own) == ("HasOwnAdapter", {"Ref": "WebAdapterLayer"})
    assert "LambdaAdapterLayerArm64" in public["Sub"]
    assert FUNCTION_GLOBALS["Architectures"] == ["arm64"]


def test_methods_go_to_the_function_that_may_serve_them() -> None:
    """What changes a stream goes to `write`; all else, unknown methods and paths too, to `read`."""
    streams = ("/v1/stream/{proxy+}", "/v1/streams/{proxy+}")
    assert sorted(ROUTES) == sorted(
        [(f"{method} {path}", "WriteFunction") for path in streams for method in ("PUT", "POST", "DELETE")]
        + [(f"{method} /{{bucket}}/{{proxy+}}", "WriteFunction") for method in ("PUT", "POST", "DELETE")]
        + [(f"{method} /{{bucket}}", "WriteFunction") for method in ("PUT", "DELETE")]
        + [(f"{method} {path}", "ReadFunction") for path in streams for method in ("GET", "HEAD")]
        + [("GET /v1/health", "ReadFunction"), ("$default", "ReadFunction")]
    )


def test_preflights_are_left_to_the_application() -> None:
    """With CorsConfiguration API Gateway would answer OPTIONS itself and drop the application's headers."""
    assert "CorsConfiguration" not in TEMPLATE["Resources"]["Api"].get("Properties", {})


def test_no_wait_outlives_the_http_api() -> None:
    """The longest settable wait leaves the function two seconds to answer before it and the API give up."""
    assert TEMPLATE["Parameters"]["LongPollSeconds"]["MaxValue"] + 2 < HTTP_API_SECONDS
    assert Settings().sse_buffered_seconds + 2 < HTTP_API_SECONDS
    assert FUNCTIONS["ReadFunction"]["Timeout"] == HTTP_API_SECONDS


def test_a_write_is_finished_for_who_asks_again() -> None:
    """It may outlive the HTTP API's patience, and never a tail that somebody has learned."""
    assert HTTP_API_SECONDS < FUNCTIONS["WriteFunction"]["Timeout"] < MAX_AGE_MS / 1000


def test_nobody_deploys_without_authorization_by_accident() -> None:
    """Neither the stack nor, should it get that far, the function."""
    assert TEMPLATE["Parameters"]["AllowAnonymous"]["Default"] == "false"
    for name in ("AuthSecretName", "AuthJwksUrl"):
        assert TEMPLATE["Parameters"][name]["Default"] == ""
    variables = FUNCTION_GLOBALS["Environment"]["Variables"]
    assert variables["ALLOW_ANONYMOUS"] == {"Ref": "AllowAnonymous"}
    [assertion] = TEMPLATE["Rules"]["OpenToEverybody"]["Assertions"]
    assert assertion["Assert"]["Or"] == [
        {"Equals": [{"Ref": "AllowAnonymous"}, "true"]},
        {"Not": [{"Equals": [{"Ref": "AuthSecretName"}, ""]}]},
        {"Not": [{"Equals": [{"Ref": "AuthJwksUrl"}, ""]}]},
    ]


def test_only_those_who_check_tokens_read_secrets() -> None:
    readers = {
        name
        for name, function in FUNCTIONS.items()
        for statement in statements_of(function)
        if statement["Action"] == "ssm:GetParameter" and statement["Resource"] != SIGNING_KEYS
    }
    assert readers == {"WriteFunction", "ReadFunction", "LiveFunction"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_code_named_by_the_template_is_there(name: str) -> None:
    """The handler exists, and the directory's Makefile builds the function under its logical name."""
    directory = ROOT / FUNCTIONS[name]["CodeUri"]
    module, attribute = FUNCTIONS[name].get("Handler", FUNCTION_GLOBALS["Handler"]).split(".")
    if attribute == "sh":
        assert os.access(directory / f"{module}.sh", os.X_OK)
        assert "uvicorn app:app" in (directory / f"{module}.sh").read_text()
        module, attribute = "app", "app"
    assert attribute in names_defined(directory / f"{module}.py")
    assert (directory / "Makefile").read_text().startswith(f"build-{name}:")


def names_defined(path: Path) -> set[str]:
    names: set[str] = set()
    for statement in ast.parse(path.read_text()).body:
        match statement:
            case ast.FunctionDef(name=name):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


def test_the_layer_is_built_for_the_runtime_that_loads_it() -> None:
    """A wheel for another Python or processor fails only at the first invocation."""
    makefile = (ROOT / "shared" / "Makefile").read_text()
    assert f"\nRUNTIME := {FUNCTION_GLOBALS['Runtime'].removeprefix('python')}\n" in makefile
    assert FUNCTION_GLOBALS["Architectures"] == ["arm64"]
    assert "\nPLATFORM := aarch64\n" in makefile


def test_the_layer_describes_every_service_that_is_called() -> None:
    """`shared/Makefile` leaves the descriptions of all others out of botocore."""
    makefile = (ROOT / "shared" / "Makefile").read_text()
    [kept] = re.findall(r"^SERVICES := (.+)$", makefile, re.MULTILINE)
    called = {
        name
        for path in (ROOT / "shared" / "tidemark").rglob("*.py")
        if path.relative_to(ROOT / "shared" / "tidemark").parts[0] not in {"local", "ops", "spark"}
        for name in re.findall(r"(?:make_client|boto3\.client)\(\s*\"(\w+)\"", path.read_text())
    }
    assert called >= {"s3", "sqs", "ssm"}
    assert called | {"dynamodb"} <= set(kept.split())


def test_slow_webhooks_leave_half_of_the_batches_to_the_quick() -> None:
    """Each may hold up a whole batch of messages."""
    [attend] = FUNCTIONS["SubscriptionsFunction"]["Events"].values()
    assert attend["Properties"]["ScalingConfig"]["MaximumConcurrency"] == 2 * SLOW_SLOTS


@pytest.mark.parametrize("path", EVENTS, ids=lambda path: path.stem)
def test_every_sample_event_is_one_the_template_delivers(path: Path) -> None:
    event = json.loads(path.read_text())
    if event.get("Records", [{}])[0].get("eventSource") == "aws:sqs":
        [attend] = FUNCTIONS["SubscriptionsFunction"]["Events"].values()
        assert (attend["Type"], len(event["Records"]) <= attend["Properties"]["BatchSize"]) == ("SQS", True)
        return
    if "Records" in event:
        patterns = [json.loads(each["Pattern"]) for each in TRIGGER["FilterCriteria"]["Filters"]]
        for record in event["Records"]:
            assert any(matches(pattern, record) for pattern in patterns)
        return
    if event.get("source") == "aws.events":
        assert "Schedule" in {each["Type"] for each in FUNCTIONS["JanitorFunction"]["Events"].values()}
        return
    context = event["requestContext"]
    assert event["routeKey"] in dict(ROUTES)
    assert (context["routeKey"], context["http"]["path"]) == (event["routeKey"], event["rawPath"])
    match = match_route(
        load_template(ROOT / "template.yaml").routes, context["http"]["method"], event["rawPath"]
    )
    assert match is not None
    assert match.route.key == event["routeKey"]
    assert dict(match.path_parameters) == event.get("pathParameters", {})
    assert [name for name in event["headers"] if name != name.lower()] == []


def test_the_sample_events_cover_every_route_of_a_stream() -> None:
    sampled = {json.loads(path.read_text()).get("routeKey") for path in EVENTS}
    routes = {route for route, _ in ROUTES if route != "GET /v1/health" and "/v1/streams/" not in route}
    assert routes <= sampled, "the alias goes where the plain surface goes"
