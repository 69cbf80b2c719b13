"""What the template must keep saying, held against the code it deploys."""

import hashlib
import itertools
import json
import re
import uuid
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stack.template import load_template, match_route
from tests.stack.triggers import matches
from tidemark.aws.http import _CONNECT_SECONDS
from tidemark.aws.sqs import Queues
from tidemark.log.schema import decode_write, log_pk, table_definition, wait_pk
from tidemark.log.tails import MAX_AGE_MS
from tidemark.protocol.stream_key import StreamKey
from tidemark.service.stream_registry import written_by
from tidemark.settings import Settings
from tidemark.subscriptions.notices import changed_from_write
from tidemark.subscriptions.records import subscription_key
from tidemark.subscriptions.webhook import SLOW_SLOTS
from tidemark.wake.notifier import SOCKET_SEND_SECONDS, SOCKETS_MS, message_from_write

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
DISTRIBUTION = TEMPLATE["Resources"]["Distribution"]["Properties"]["DistributionConfig"]
ORIGINS = {origin["Id"]: origin for origin in DISTRIBUTION["Origins"]}
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


def test_an_action_that_iam_limits_to_no_resource_is_allowed_on_all() -> None:
    """By IAM's own table, which cfn-lint has: a narrower statement allows nothing, on AWS alone."""
    # The tests of Spark import this module, and their environment has no cfn-lint.
    folder = Path(str(find_spec("cfnlint").origin)).parent  # type: ignore[union-attr]
    known = json.loads((folder / "data/AdditionalSpecs/Policies.json").read_text())
    [setup] = TEMPLATE["Resources"]["OriginSecretRole"]["Properties"]["Policies"]
    roles = [*FUNCTIONS.values(), {"Policies": [setup["PolicyDocument"]]}]
    for statement in (each for role in roles for each in statements_of(role)):
        actions = statement["Action"]
        for action in [actions] if isinstance(actions, str) else actions:
            service, _, name = action.lower().partition(":")
            limited = "Resources" in known[service]["Actions"][name]
            assert limited or statement["Resource"] == "*", action


#: A secret itself is no value of a template's: where it is kept is. The HTTP API has its own limit.
#: A stack packs what is an hour old, and an event stream that cannot be streamed waits for a second. A
#: long-poll waits for no longer than an event stream lasts.
LOCAL_ONLY = {
    "AUTH_SECRET",
    "LONG_POLL_SECONDS",
    "PACK_AFTER_SECONDS",
    "REQUESTS_PER_SECOND",
    "SSE_BUFFERED_SECONDS",
}


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
    """A variable misspelt on either side would silently mean its default. Only functions that check the
    origin secret have it."""
    environment = Recorded()
    Settings.from_environment(environment)
    # The distribution is made after the functions behind it: only one that is not behind it knows its name.
    own = {
        **{f"{name}Function": {"EDGE_SECRET"} for name in ("Write", "Writer", "Read", "Live")},
        "PipeFunction": {"PROXY_ALLOW"},
        "ProxyFunction": {"EDGE_SECRET", "PROXY_ALLOW", "PIPE_FUNCTION"},
        "SubscriptionsFunction": {"PUBLIC_URL"},
    }
    assert set(FUNCTION_GLOBALS["Environment"]["Variables"]) == environment.asked - LOCAL_ONLY - set().union(
        *own.values()
    )
    found = {
        name: {each for each in variables_of(function) if not each.startswith("AWS_")}
        for name, function in FUNCTIONS.items()
    }
    assert {name: variables for name, variables in found.items() if variables} == own


def test_the_table_is_the_one_the_code_creates_locally() -> None:
    """Keys, billing and stream view: what the tests ran against is what is deployed."""
    local = table_definition("t")
    deployed = TEMPLATE["Resources"]["Table"]["Properties"]
    for name in ("BillingMode", "AttributeDefinitions", "KeySchema"):
        assert deployed[name] == local[name]
    assert local["StreamSpecification"] == {"StreamEnabled": True} | deployed["StreamSpecification"]
    assert deployed["StreamSpecification"] == {"StreamViewType": "KEYS_ONLY"}


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


def test_the_trigger_hears_which_records_failed_and_tries_them_for_an_hour() -> None:
    """Subscriptions depend on each record; one bad batch must not hold a shard up for a day."""
    assert TRIGGER["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert TRIGGER["StartingPosition"] == "TRIM_HORIZON"
    assert (TRIGGER["MaximumRetryAttempts"], TRIGGER["MaximumRecordAgeInSeconds"]) == (1000, 3600)
    assert TRIGGER["DestinationConfig"]["OnFailure"]["Type"] == "SQS"


def test_the_triggers_filter_and_the_code_mean_the_same_records() -> None:
    """What the filter lets through is what the notifier sends messages for, no less and no more."""
    patterns = [json.loads(each["Pattern"]) for each in TRIGGER["FilterCriteria"]["Filters"]]
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
        write = decode_write(record)
        is_wanted = message_from_write(write) or changed_from_write(write) or written_by([write]).items
        assert any(matches(pattern, record) for pattern in patterns) == bool(is_wanted), record


def test_nothing_waits_for_longer_than_what_is_in_front_of_it() -> None:
    """The longest wait leaves two seconds to answer. A write may outlive the HTTP API's patience, and never a
    tail that somebody has learned."""
    parameters, functions = TEMPLATE["Parameters"], FUNCTIONS
    assert Settings().long_poll_seconds + 2 < HTTP_API_SECONDS
    for shorter in ("5", "0"):
        assert Settings.from_environment({"SSE_SECONDS": shorter}).long_poll_seconds == float(shorter)
    assert Settings().sse_buffered_seconds + 2 < HTTP_API_SECONDS
    assert functions["ReadFunction"]["Timeout"] == HTTP_API_SECONDS
    assert HTTP_API_SECONDS < functions["WriteFunction"]["Timeout"] < MAX_AGE_MS / 1000
    assert parameters["SseSeconds"]["MaxValue"] < functions["LiveFunction"]["Timeout"]
    [rounds] = functions["PackerFunction"]["Events"].values()
    assert rounds["Properties"]["Schedule"] == "rate(5 minutes)"
    assert functions["PackerFunction"]["Timeout"] < 5 * 60, "one round at a time"
    # The last post may take as long, and so may cutting off its connection.
    one_call = _CONNECT_SECONDS + SOCKET_SEND_SECONDS
    assert SOCKETS_MS / 1000 + 2 * one_call + 5 <= functions["NotifierFunction"]["Timeout"]
    live = ORIGINS["live"]
    waited_for = [
        ORIGINS["api"]["CustomOriginConfig"],
        live["CustomOriginConfig"]["If"][2],
        live["VpcOriginConfig"]["If"][1],
    ]
    heartbeats = 2 * 15
    assert min(each["OriginReadTimeout"] for each in waited_for) > Settings().long_poll_seconds
    assert min(each["OriginReadTimeout"] for each in waited_for[1:]) > heartbeats


def test_the_socket_api_is_deployed_when_all_of_it_is_there_and_again_when_it_changes() -> None:
    """Else the last state may lack the response by which a watch is answered."""
    kinds = {
        f"AWS::ApiGatewayV2::{kind}"
        for kind in ("Route", "Integration", "RouteResponse", "IntegrationResponse")
    }
    parts = {name: each for name, each in TEMPLATE["Resources"].items() if each["Type"] in kinds}
    [(name, deployment)] = [
        found
        for found in TEMPLATE["Resources"].items()
        if found[1]["Type"] == "AWS::ApiGatewayV2::Deployment"
    ]
    assert set(deployment["DependsOn"]) == parts.keys()
    stage = TEMPLATE["Resources"]["SocketStage"]["Properties"]
    assert (stage["AutoDeploy"], stage["DeploymentId"]) == (False, {"Ref": name})
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]
    assert name == f"SocketDeployment{digest}", "rename it in template.yaml"
    for each in parts.values():
        if each["Properties"].get("IntegrationType") == "AWS_PROXY":
            assert each["Properties"]["IntegrationMethod"] == "POST", "as Lambda is called"


def parameters_in(part: Any) -> set[str]:
    """Those that decide what `part` of the template is: named there, or in a condition that it names."""
    if isinstance(part, dict):
        conditions = [
            part[key] if key == "Condition" else part[key][0] for key in ("Condition", "If") if key in part
        ]
        named = [TEMPLATE["Conditions"][name] for name in conditions]
        return set().union(*map(parameters_in, [*part.values(), *named]))
    if isinstance(part, list):
        return set().union(*map(parameters_in, part))
    return {part, *re.findall(r"\$\{(\w+)\}", str(part))} & TEMPLATE["Parameters"].keys()


def test_a_parameter_that_write_and_read_are_given_publishes_a_version() -> None:
    """And no other. The digest in their descriptions is of what `Setup` is given."""
    own = [
        {key: FUNCTIONS[name][key] for key in FUNCTIONS[name].keys() - {"Policies", "LoggingConfig"}}
        for name in ("WriteFunction", "ReadFunction")
    ]
    setup = dict(TEMPLATE["Resources"]["Setup"]["Properties"])
    settings = parameters_in(setup.pop("Settings"))
    assert settings == parameters_in([FUNCTION_GLOBALS, own]) - setup.keys()
    for name in ("Write", "Read"):
        assert "${Setup.Digest}" in FUNCTIONS[f"{name}Function"]["Description"]["Sub"]
        version = TEMPLATE["Resources"][f"{name}Version"]["Properties"]
        assert version["Description"] == {"GetAtt": "Setup.Digest"}


def test_preflights_are_left_to_the_application() -> None:
    """With CorsConfiguration API Gateway would answer OPTIONS itself and drop the application's headers."""
    assert "CorsConfiguration" not in TEMPLATE["Resources"]["Api"].get("Properties", {})


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
    if context.get("eventType") == "MESSAGE" or "lambda-url" in context["domainName"]:
        assert context["routeKey"] == "$default"
        return
    assert event["routeKey"] in dict(ROUTES)
    assert (context["routeKey"], context["http"]["path"]) == (event["routeKey"], event["rawPath"])
    match = match_route(
        load_template(ROOT / "template.yaml").routes, context["http"]["method"], event["rawPath"]
    )
    assert match.route.key == event["routeKey"]
    assert dict(match.path_parameters) == event.get("pathParameters", {})
    assert [name for name in event["headers"] if name != name.lower()] == []
