"""The edge: what is cached by what, and which origin a request goes to. The function runs under Node."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_to_bytes, urlencode

import pytest
import yaml

from tests.infra.custom_resources import answers_of
from tests.infra.test_template import FUNCTION_GLOBALS, TEMPLATE, CloudFormationLoader, statements_of
from tidemark.http import dispatch
from tidemark.http.openapi import document
from tidemark.http.security import authorization, origin_secret
from tidemark.local.events import decode_path
from tidemark.local.gateway import HeadTooLarge, api_path, check_head, header_path, is_live
from tidemark.observability.invocation import EDGE_VERSION, EDGE_VERSION_HEADER, read_edge_path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "edge" / "route.js"
RESOURCES = TEMPLATE["Resources"]
CONTAINER = yaml.load((ROOT / "container" / "template.yaml").read_text(), CloudFormationLoader)["Resources"]
DISTRIBUTION = RESOURCES["Distribution"]["Properties"]["DistributionConfig"]
KEY = RESOURCES["EdgeCachePolicy"]["Properties"]["CachePolicyConfig"]
FORWARDED = RESOURCES["EdgeOriginRequestPolicy"]["Properties"]["OriginRequestPolicyConfig"]
ORIGINS = {origin["Id"]: origin for origin in DISTRIBUTION["Origins"]}

#: CloudFront's own module, in whose place a recorder stands.
HARNESS = """
const chosen = [];
const cf = { selectRequestOriginById: id => chosen.push(id) };
%s
const events = JSON.parse(require('fs').readFileSync(0, 'utf8'));
console.log(JSON.stringify(events.map(event => {
    chosen.length = 0;
    return { request: handler(event), origin: chosen[0] || 'api' };
})));
"""


def event(method: str, query: dict[str, Any], uri: str = "/v1/stream/a", **headers: str) -> dict[str, Any]:
    """As CloudFront gives it to a viewer-request function: the path is percent-encoded."""
    return {
        "version": "1.0",
        "request": {
            "method": method,
            "uri": uri,
            "querystring": {name: {"value": value} for name, value in query.items()},
            "headers": {
                "host": {"value": "streams.example"},
                **{name.replace("_", "-"): {"value": value} for name, value in headers.items()},
            },
            "cookies": {},
        },
    }


def route(*events: dict[str, Any]) -> list[dict[str, Any]]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is missing: the edge's function cannot be tested")
    code = SOURCE.read_text().replace("import cf from 'cloudfront';\n", "")
    ran = subprocess.run(
        [node, "--input-type=commonjs", "-e", HARNESS % code],
        input=json.dumps(events),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    routed: list[dict[str, Any]] = json.loads(ran.stdout)
    return routed


def test_the_deployed_function_is_the_tested_one() -> None:
    assert RESOURCES["EdgeRoute"]["Properties"]["FunctionCode"] == SOURCE.read_text()
    assert RESOURCES["EdgeRoute"]["Properties"]["FunctionConfig"]["Runtime"] == "cloudfront-js-2.0"
    assert len(SOURCE.read_bytes()) < 10 * 1024
    [association] = DISTRIBUTION["DefaultCacheBehavior"]["FunctionAssociations"]
    assert association["EventType"] == "viewer-request", "the origin can be chosen there only"


@pytest.mark.parametrize(
    ("method", "query", "origin"),
    [
        ("GET", {"offset": "-1", "live": "sse"}, "live"),
        ("GET", {"live": "sse"}, "live"),
        ("GET", {"offset": "-1", "live": "long-poll", "cursor": "7"}, "live"),
        ("GET", {"offset": "-1"}, "api"),
        ("GET", {}, "api"),
        ("GET", {"live": "long%2Dpoll"}, "live"),
        ("GET", {"live": "SSE"}, "live"),
        ("GET", {"live": ""}, "live"),
        ("HEAD", {"live": "sse"}, "api"),
        ("HEAD", {"live": "long-poll"}, "api"),
        ("POST", {"live": "long-poll"}, "api"),
        ("PUT", {"live": "sse"}, "api"),
        ("DELETE", {"live": "sse"}, "api"),
        ("OPTIONS", {"live": "sse"}, "api"),
    ],
)
def test_reads_that_wait_go_to_the_live_function(method: str, query: dict[str, str], origin: str) -> None:
    """However the wait is written: plain reads have the read function's concurrency for themselves. What is
    no kind of wait gets its 400 there too."""
    [routed] = route(event(method, query))
    assert routed["origin"] == origin
    assert routed["request"]["querystring"] == {name: {"value": value} for name, value in query.items()}
    assert routed["request"]["uri"] == "/v1/stream/a"
    assert is_live(method, urlencode(query)) == (origin == "live"), "the local edge decides otherwise"


def test_a_wait_that_is_given_twice_goes_there_too() -> None:
    """The application answers 400."""
    assert is_live("GET", "live=sse&live=long-poll")
    asked = event("GET", {"live": "sse"})
    asked["request"]["querystring"]["live"]["multiValue"] = [{"value": "sse"}, {"value": "long-poll"}]
    assert route(asked)[0]["origin"] == "live"


def listed(statement: dict[str, Any]) -> dict[str, Any]:
    actions = statement["Action"]
    return statement | {"Action": [actions] if isinstance(actions, str) else actions}


def test_the_live_function_may_do_what_a_wait_needs() -> None:
    """All that the read function may: without the edge, long-polls wait there."""
    read, live = (
        {
            (action, json.dumps(statement["Resource"]), json.dumps(statement.get("Condition")))
            for statement in map(listed, statements_of(RESOURCES[name]["Properties"]))
            for action in statement["Action"]
        }
        for name in ("ReadFunction", "LiveFunction")
    )
    assert read < live


def test_a_token_makes_room_for_the_signature() -> None:
    name = authorization.FORWARDED.lower()
    streamed, plain = route(
        event("GET", {"live": "sse"}, authorization="Bearer x"), event("GET", {}, authorization="Bearer x")
    )
    assert streamed["request"]["headers"][name] == {"value": "Bearer x"}
    assert name not in plain["request"]["headers"]


def test_what_the_edge_says_nobody_else_can_say() -> None:
    forged = {
        "x_tidemark_authorization": "Bearer forged",
        "x_tidemark_host": "evil.example",
        "x_tidemark_edge_version": "0",
        "x_tidemark_path": "/v1/stream/b",
        "x_tidemark_content_type": "text/plain",
    }
    told = {
        "api": (EDGE_VERSION, None),
        "live": (origin_secret.PATH_IN_HEADER, {"value": "/v1/stream/a"}),
    }
    for routed in route(event("GET", {}, **forged), event("GET", {"live": "sse"}, **forged)):
        headers = routed["request"]["headers"]
        version, path = told[routed["origin"]]
        assert authorization.FORWARDED.lower() not in headers
        assert headers["x-tidemark-host"] == {"value": "streams.example"}
        assert headers.get("x-tidemark-path") == path
        assert headers[EDGE_VERSION_HEADER.lower()] == {"value": version}
        assert "x-tidemark-content-type" not in headers


def test_a_body_goes_to_the_http_api_as_bytes() -> None:
    """Which travel to the function as base64: as text, quotes and line ends would count twice."""
    asked = event("POST", {}, content_type="application/json; charset=utf-8")
    twice = event("POST", {}, content_type="text/plain")
    twice["request"]["headers"]["content-type"]["multiValue"] = [{"value": "text/plain"}, {"value": "a/b"}]
    routed, repeated, without, live = route(
        asked, twice, event("POST", {}), event("GET", {"live": "sse"}, content_type="text/plain")
    )
    assert routed["request"]["headers"]["content-type"] == {"value": "application/octet-stream"}
    assert types(routed) == {"value": "application/json; charset=utf-8"}
    assert types(repeated) == {"value": "text/plain,a/b"}
    assert types(without) is None
    assert "content-type" not in without["request"]["headers"]
    assert live["request"]["headers"]["content-type"] == {"value": "text/plain"}


def test_an_encoded_name_of_a_parameter_gets_400_at_the_edge() -> None:
    """The cache key would have it as another parameter, and the origin would not."""
    for name in ("%6fffset", "curso%72", "%"):
        [routed] = route(event("GET", {name: "1"}))
        assert routed["request"]["statusCode"] == 400
        assert json.loads(routed["request"]["body"])["error"]
        assert routed["request"]["headers"]["cache-control"] == {"value": "no-store"}


def types(routed: dict[str, Any]) -> dict[str, str] | None:
    found: dict[str, str] | None = routed["request"]["headers"].get("x-tidemark-content-type")
    return found


URIS = [
    "/v1/stream/a%3Fb",
    "/v1/stream/a%2Fb/%C3%A9/100%25/a%2525b%23",
    "/v1/stream/a%zz/%",
    "/v1/stream/%FF",
    "/v1/stream/~._-:@!$&'()*+,;=",
    '/v1/stream/"<>[]\\^`{|}',
    "/v1/stream/é 🐢",
    "/v1/stream/a~2Fb/~~2b/%7E2Fb/%~/%%~",
    "/v1/stream/../.a/b./%2E%2e/.",
    "/%761/stream/a",
    "/",
]


@pytest.mark.parametrize("uri", URIS)
def test_the_live_function_is_told_the_path_that_was_sent(uri: str) -> None:
    """As a header value that HTTP allows. The local edge says the same."""
    [live] = route(event("GET", {"live": "sse"}, uri))
    told = live["request"]["headers"]["x-tidemark-path"]["value"]
    assert told == header_path(uri.encode())
    assert unquote_to_bytes(told) == unquote_to_bytes(uri.encode())
    assert re.fullmatch(r"[!-~]+", told)
    assert live["request"]["uri"] == uri, "the function's address hands the path on as it is"


@pytest.mark.parametrize("uri", URIS)
def test_the_http_api_gets_each_path_once_in_characters_that_it_leaves_alone(uri: str) -> None:
    """It decodes twice, cuts at a question mark and refuses what it cannot decode. So also what is wrong gets
    its answer from us."""
    [routed] = route(event("GET", {}, uri))
    written = routed["request"]["uri"]
    assert re.fullmatch(r"/[A-Za-z0-9/_.~-]*", written)
    assert {".", ".."}.isdisjoint(written.split("/")), "it may resolve these"
    assert decode_path(written) == written == api_path(uri.encode()).decode(), "the local edge does the same"
    assert read_edge_path(written) == header_path(uri.encode())


def test_no_two_paths_are_written_alike() -> None:
    """Else one would be served the other's cached answer."""
    parts = ["~", "%7E", "%", "%25", "%2F", "2F", "+", "%2B", ".", "/", "e"]
    paths = ["/" + "".join(each) for each in itertools.product(parts, repeat=4)]
    assert len({api_path(path.encode()) for path in paths}) == len(set(paths))


#: What a browser's script sends, and what CloudFront adds.
USUAL = {
    "host": "abcdefghij.execute-api.ap-southeast-2.amazonaws.com",
    "user-agent": "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 (KHTML, like Gecko) "
    "Chrome/142.0.0.0 Safari/537.36 Edg/142.0.0.0",
    "accept": "*/*",
    "accept-encoding": "gzip, deflate, br, zstd",
    "accept-language": "en-GB,en;q=0.9,de-DE;q=0.8,de;q=0.7",
    "content-type": "application/octet-stream",
    "content-length": "4194304",
    "origin": "https://application.customer.example.com",
    "referer": "https://application.customer.example.com/",
    "priority": "u=1, i",
    "sec-ch-ua": '"Chromium";v="142", "Microsoft Edge";v="142", "Not_A Brand";v="99"',
    "sec-ch-ua-mobile": "?0",
    "sec-ch-ua-platform": '"macOS"',
    "sec-fetch-dest": "empty",
    "sec-fetch-mode": "cors",
    "sec-fetch-site": "cross-site",
    "producer-id": "p" * 36,
    "producer-epoch": "1",
    "producer-seq": "1234567",
    "via": "2.0 0123456789abcdef0123456789abcdef.cloudfront.net (CloudFront)",
    "x-amz-cf-id": "A" * 56,
    "x-amzn-trace-id": "Root=1-5759e988-bd862e3fe1be46a994272793",
    "x-forwarded-for": "2001:db8:85a3:8d3:1319:8a2e:370:7348",
    "x-tidemark-content-type": "application/json; charset=utf-8",
    "x-tidemark-edge": "0" * 64,
    "x-tidemark-edge-version": EDGE_VERSION,
    "x-tidemark-host": "streams.customer.example.com",
}


@pytest.mark.parametrize(
    ("name", "token_bytes", "fits"),
    [
        ("潮" * 333, 1200, True),
        ("潮" * 333, 4096, True),
        ("+" * 1000, 1200, True),
        ("tides/2026", 8192, True),
        ("潮" * 333, 8192, False),
    ],
    ids=["longest-1.2KB", "longest-4KB", "punctuation-1.2KB", "short-8KB", "longest-8KB"],
)
def test_what_fits_an_http_api_together(name: str, token_bytes: int, *, fits: bool) -> None:
    """The longest name and a usual token do; `docs/reference/limits.md` says what does not."""
    headers = USUAL | {"authorization": "Bearer " + "t" * (token_bytes - len("Bearer "))}
    scope = {
        "method": "POST",
        "raw_path": api_path(f"/v1/stream/{quote(name)}".encode()),
        "query_string": b"offset=0000000000000000&cursor=1234567890123456",
        "headers": [(header.encode(), value.encode()) for header, value in headers.items()],
    }
    with nullcontext() if fits else pytest.raises(HeadTooLarge):
        check_head(scope)


def query_parameters() -> set[str]:
    """Of every read that the published document knows."""
    published = document()
    shared = published["components"]["parameters"]
    named = [
        shared[each["$ref"].rpartition("/")[2]] if "$ref" in each else each
        for operations in published["paths"].values()
        for each in operations.get("get", {}).get("parameters", ())
    ]
    return {each["name"] for each in named if each["in"] == "query"}


def test_the_cache_key_tells_answers_apart_and_nothing_else() -> None:
    """Whoever waits for the same shares a request; whoever may not have it never meets it."""
    keyed = KEY["ParametersInCacheKeyAndForwardedToOrigin"]
    condition, private, public = keyed["QueryStringsConfig"]["QueryStrings"]["If"]
    assert condition == "IsPrivate"
    assert private == [*public, authorization.QUERY_NAME]
    assert set(private) == query_parameters(), "who asks for something else would wait for this answer"
    assert len(private) <= 10, "CloudFront takes no more by default"
    condition, private, public = keyed["HeadersConfig"]["If"]
    assert condition == "IsPrivate"
    assert private["Headers"] == ["Authorization", authorization.FORWARDED]
    assert public == {"HeaderBehavior": "none"}
    assert keyed["CookiesConfig"] == FORWARDED["CookiesConfig"] == {"CookieBehavior": "none"}


def test_the_application_alone_says_what_is_kept() -> None:
    """A minimum would overrule its `no-store`; so would the ten seconds that errors are kept unasked."""
    assert (KEY["MinTTL"], KEY["DefaultTTL"]) == (0, 0)
    kept = {each["ErrorCode"]: each["ErrorCachingMinTTL"] for each in DISTRIBUTION["CustomErrorResponses"]}
    assert {404, 500, 502, 503, 504} <= kept.keys()
    assert set(kept.values()) == {0}
    assert all(
        each.keys() == {"ErrorCode", "ErrorCachingMinTTL"} for each in DISTRIBUTION["CustomErrorResponses"]
    )


def test_origins_are_reached_by_the_edge_alone() -> None:
    """The function's address takes signed requests, the HTTP API a word that only the edge knows."""
    access = RESOURCES["EdgeAccess"]["Properties"]["OriginAccessControlConfig"]
    assert (access["OriginAccessControlOriginType"], access["SigningBehavior"]) == ("lambda", "always")
    assert ORIGINS["live"]["OriginAccessControlId"]["If"][2] == {"Ref": "EdgeAccess"}
    granted = {RESOURCES[name]["Properties"]["Action"] for name in ("EdgeMayCallLiveUrl", "EdgeMayCallLive")}
    assert granted == {"lambda:InvokeFunctionUrl", "lambda:InvokeFunction"}
    for name in ("EdgeMayCallLiveUrl", "EdgeMayCallLive"):
        assert "distribution/${Distribution}" in RESOURCES[name]["Properties"]["SourceArn"]["Sub"]
    for origin in ORIGINS.values():
        [word] = origin["OriginCustomHeaders"]
        assert word["HeaderName"] == origin_secret.HEADER
        own = {"Sub": "{{resolve:ssm:${EdgeSecretName}}}"}
        assert word["HeaderValue"] == {"If": ["HasEdgeSecret", own, MADE_WORD]}
        assert not origin_secret.HEADER.lower().startswith(("x-edge-", "x-amz-")), (
            "CloudFront keeps these for itself"
        )


MADE_WORD = {"GetAtt": "OriginSecret.Value"}
REQUEST = {
    "RequestType": "Create",
    "StackId": "arn:aws:cloudformation:us-east-1:123456789012:stack/tidemark/0b1c2d3e",
    "RequestId": "request-1",
    "LogicalResourceId": "OriginSecret",
    "ResourceType": "Custom::OriginSecret",
    "ResourceProperties": {"ServiceToken": "arn"},
}


def test_the_origin_secret_is_drawn_when_the_stack_is_created() -> None:
    """256 random bits that CloudFormation shows to nobody, different in each stack."""
    first, second = answers_of("OriginSecretFunction", REQUEST, REQUEST)
    assert re.fullmatch("[0-9a-f]{64}", first["Data"]["Value"])
    assert first["Data"]["Value"] != second["Data"]["Value"]
    assert first["PhysicalResourceId"] != second["PhysicalResourceId"]
    for answer in (first, second):
        assert (answer["Status"], answer["NoEcho"]) == ("SUCCESS", True)
        assert answer["Data"]["Value"] not in answer["PhysicalResourceId"]
        for name in ("StackId", "RequestId", "LogicalResourceId"):
            assert answer[name] == REQUEST[name]


@pytest.mark.parametrize("kind", ["Update", "Delete"])
def test_the_resource_keeps_its_name_until_it_is_deleted(kind: str) -> None:
    """Another name would make CloudFormation delete the one before."""
    request = REQUEST | {"RequestType": kind, "PhysicalResourceId": "origin-secret-1"}
    [answer] = answers_of("OriginSecretFunction", request)
    assert (answer["Status"], answer["PhysicalResourceId"]) == ("SUCCESS", "origin-secret-1")


def test_nothing_about_the_resource_changes_between_two_deployments() -> None:
    """Another property would draw another secret, which CloudFront says minutes after it is asked for."""
    resource = RESOURCES["OriginSecret"]
    assert resource["Properties"] == {
        "ServiceToken": {"GetAtt": "OriginSecretFunction.Arn"},
        "ServiceTimeout": 60,
    }
    assert "FunctionName" not in RESOURCES["OriginSecretFunction"]["Properties"]
    assert RESOURCES["OriginSecretFunction"]["Properties"]["Runtime"] == FUNCTION_GLOBALS["Runtime"]


def resolve(part: Any, references: dict[str, str]) -> Any:
    """What CloudFormation makes of `!Ref`, `!Split` and `!Select`."""
    if not isinstance(part, dict):
        return part
    [(name, inner)] = part.items()
    if name == "Ref":
        return references[inner]
    if name == "Sub":
        return re.sub(r"\$\{(\w+)\}", lambda found: references[found[1]], inner)
    first, text = inner[0], resolve(inner[1], references)
    return text.split(first) if name == "Split" else text[first]


CONDITIONS = TEMPLATE["Conditions"]


def holds(condition: Any, parameters: dict[str, str], named: dict[str, Any] = CONDITIONS) -> bool:
    """What CloudFormation makes of a condition."""
    [(name, inner)] = condition.items()
    if name == "Equals":
        left, right = (str(resolve(each, parameters)) for each in inner)
        return left == right
    if name == "Condition":
        return holds(named[inner], parameters, named)
    found = [holds(each, parameters, named) for each in inner]
    return {"Not": not found[0], "And": all(found), "Or": any(found)}[name]


DEFAULTS = {name: str(each["Default"]) for name, each in TEMPLATE["Parameters"].items()}


@pytest.mark.parametrize(
    ("given", "required", "made"),
    [
        ({}, True, True),
        ({"AllowAnonymous": "true"}, True, True),
        ({"EdgeSecretName": "/tidemark/word"}, True, False),
        ({"EdgeSecretName": "/tidemark/word", "Edge": "optional"}, False, False),
        ({"Edge": "optional"}, False, True),
        ({"Edge": "false"}, False, False),
    ],
    ids=str,
)
def test_direct_access_is_asked_for_by_name(given: dict[str, str], *, required: bool, made: bool) -> None:
    """With a distribution in front nobody comes past it unasked; without one nobody is locked out. Functions
    know the secret in any case: by it they believe what the edge says of a request."""
    parameters = DEFAULTS | given
    assert holds(CONDITIONS["IsEdgeOnly"], parameters) == required
    assert holds(CONDITIONS["MakesEdgeWord"], parameters) == made
    variables = FUNCTION_GLOBALS["Environment"]["Variables"]
    assert variables["EDGE_SECRET"] == {"If": ["MakesEdgeWord", MADE_WORD, ""]}
    assert variables["EDGE_SECRET_NAME"] == {"Ref": "EdgeSecretName"}
    assert variables["EDGE_ONLY"] == {"If": ["IsEdgeOnly", "true", "false"]}


def test_the_edge_is_changed_after_the_functions() -> None:
    """They understand older edges. Those of the first releases would take every body for bytes."""
    route = RESOURCES["EdgeRoute"]
    assert set(route["DependsOn"]) == {"ApiMayCallRead", "ApiMayCallWrite", "LiveFunction"}
    for name in ("Read", "Write"):
        permission = RESOURCES[f"ApiMayCall{name}"]["Properties"]
        assert permission["FunctionName"] == {"Ref": f"{name}Function"}
        assert permission["SourceArn"]["Sub"].endswith(":${Api}/*")


def test_the_edge_says_its_word_before_anybody_asks_for_it() -> None:
    """CloudFront takes minutes to hear of a change, and functions seconds: so Edge=optional changes what
    the functions ask for and nothing else, and a word can be changed behind it without a gap."""
    for name in ("OriginSecret", "OriginSecretFunction", "OriginSecretRole"):
        assert RESOURCES[name]["Condition"] == "MakesEdgeWord"
    for given in (
        {},
        {"EdgeSecretName": "/w"},
        {"EdgeName": "streams.example.org"},
        {"AllowAnonymous": "true"},
    ):
        required, optional = (
            {
                name: holds(each, DEFAULTS | given | {"Edge": edge, "AWS::Region": "us-east-1"})
                for name, each in CONDITIONS.items()
            }
            for edge in ("true", "optional")
        )
        assert {name for name in required if required[name] != optional[name]} == {"IsEdgeOnly"}
    assert "IsEdgeOnly" not in json.dumps(DISTRIBUTION)


def test_a_word_of_ones_own_is_for_an_edge_alone() -> None:
    """Without a distribution nobody would say it."""
    rule = TEMPLATE["Rules"]["WordForWhom"]
    parameters = DEFAULTS | {"EdgeSecretName": "/tidemark/word"}
    assert holds(rule["RuleCondition"], parameters)
    assert all(holds(each["Assert"], parameters) for each in rule["Assertions"])
    assert not all(holds(each["Assert"], parameters | {"Edge": "false"}) for each in rule["Assertions"])


def test_timeouts_fit_what_waits_behind() -> None:
    api, live = ORIGINS["api"]["CustomOriginConfig"], ORIGINS["live"]["CustomOriginConfig"]["If"][2]
    container = ORIGINS["live"]["VpcOriginConfig"]["If"][1]
    longest = TEMPLATE["Parameters"]["LongPollSeconds"]["MaxValue"]
    assert api["OriginReadTimeout"] > longest
    assert live["OriginReadTimeout"] > max(longest, 2 * 15)
    assert container["OriginReadTimeout"] > max(longest, 2 * 15)
    assert {api["OriginProtocolPolicy"], live["OriginProtocolPolicy"]} == {"https-only"}


def test_the_documents_are_open_at_the_edge_too() -> None:
    assert {"/v1/health", "/v1/openapi.json"} == dispatch.OPEN_PATHS


def test_the_dashboard_is_json_and_names_what_is_measured() -> None:
    body = RESOURCES["NumbersDashboard"]["Properties"]["DashboardBody"]["Sub"]
    widgets = json.loads(body)["widgets"]
    assert len(widgets) > 5
    for widget in widgets:
        assert widget["properties"]["metrics"], widget


ALARMS = {
    name: each
    for template in (RESOURCES, CONTAINER)
    for name, each in template.items()
    if each["Type"] == "AWS::CloudWatch::Alarm"
}


def test_alarms_cost_nothing_unless_somebody_is_told() -> None:
    for name, alarm in ALARMS.items():
        assert alarm["Condition"] == ("HasEdgeAlarm" if name == "EdgeErrorsAlarm" else "HasAlarms"), name
        assert alarm["Properties"]["AlarmActions"] == [{"Ref": "AlarmTopicArn"}]
    own = ALARMS.keys() - CONTAINER.keys()
    costs = (ROOT / "docs" / "costs.md").read_text()
    assert f"{len(own)} alarms at 0.10 | {len(own) / 10:.2f} |" in costs


def test_whatever_answers_or_is_asked_is_watched_for_errors() -> None:
    """The functions behind the HTTP API by it and by themselves, the live one at its own address: what
    fails there as a whole is 502, and what we answer with 503 is no error of Lambda's. The table by what
    counts every operation, and not puts alone."""
    watched = {
        (alarm["Properties"]["MetricName"], json.dumps(alarm["Properties"]["Dimensions"]))
        for alarm in ALARMS.values()
    }
    assert len(watched) == len(ALARMS), "one has taken over what it should say itself"
    expected = [
        *(("Errors", "FunctionName", f"{name}Function") for name in ("Write", "Read", "Notifier", "Janitor")),
        ("Errors", "FunctionName", "PackerFunction"),
        ("Errors", "FunctionName", "SubscriptionsFunction"),
        ("Url5xxCount", "FunctionName", "LiveFunction"),
        ("5xx", "ApiId", "Api"),
        ("ReadThrottleEvents", "TableName", "Table"),
        ("WriteThrottleEvents", "TableName", "Table"),
    ]
    for metric, dimension, resource in expected:
        assert (metric, json.dumps([{"Name": dimension, "Value": {"Ref": resource}}])) in watched
    for service in ("write", "read", "live"):
        assert ("KeyFailures", json.dumps([{"Name": "service", "Value": service}])) in watched
    assert {"5xxErrorRate", "HealthyHostCount", "HTTPCode_Target_5XX_Count", "HTTPCode_ELB_5XX_Count"} <= {
        metric for metric, _ in watched
    }


def test_a_name_of_ones_own_has_a_certificate_and_tls_1_2() -> None:
    parameters = DEFAULTS | {"EdgeName": "streams.example.org", "EdgeCertificateArn": "arn:certificate"}
    named = DISTRIBUTION["ViewerCertificate"]["If"][1]
    assert (named["MinimumProtocolVersion"], named["SslSupportMethod"]) == ("TLSv1.2_2021", "sni-only")
    assert DISTRIBUTION["ViewerCertificate"]["If"][2] == {"CloudFrontDefaultCertificate": True}
    assert DISTRIBUTION["Aliases"]["If"] == ["HasEdgeName", [{"Ref": "EdgeName"}], {"Ref": "AWS::NoValue"}]
    assert DISTRIBUTION["WebACLId"]["If"][:2] == ["HasEdgeFirewall", {"Ref": "EdgeFirewallArn"}]
    [assertion] = TEMPLATE["Rules"]["NameWithCertificate"]["Assertions"]
    assert holds(assertion["Assert"], DEFAULTS)
    assert holds(assertion["Assert"], parameters)
    for missing in ({"EdgeName": ""}, {"EdgeCertificateArn": ""}, {"Edge": "false"}):
        assert not holds(assertion["Assert"], parameters | missing)
    for url in (
        TEMPLATE["Outputs"]["Url"]["Value"]["If"][1],
        RESOURCES["SubscriptionsFunction"]["Properties"]["Environment"]["Variables"]["PUBLIC_URL"]["If"][1],
    ):
        assert url["If"][:2] == ["HasEdgeName", {"Sub": "https://${EdgeName}"}]


def test_nothing_in_front_logs_addresses() -> None:
    """Tokens may be in them (`access_token`)."""
    assert "AccessLogSettings" not in RESOURCES["Api"]["Properties"]
    assert "Logging" not in DISTRIBUTION
    assert "RealtimeLogConfigArn" not in DISTRIBUTION["DefaultCacheBehavior"]


def test_two_stacks_of_one_account_keep_apart() -> None:
    """Names at the edge, and dashboards', are the account's: a stack of the same name may be in another
    region. Metrics are counted by stack."""
    an_id = {"Id": {"Select": [2, {"Split": ["/", {"Ref": "AWS::StackId"}]}]}}
    names = [
        KEY["Name"],
        FORWARDED["Name"],
        RESOURCES["EdgeAccess"]["Properties"]["OriginAccessControlConfig"]["Name"],
        RESOURCES["EdgeRoute"]["Properties"]["Name"],
    ]
    for name in names:
        text, given = name["Sub"]
        assert given == an_id
        assert len(text.replace("${Id}", "0" * 36)) <= 64
    dashboard = RESOURCES["NumbersDashboard"]["Properties"]
    assert dashboard["DashboardName"] == {"Sub": "${AWS::StackName}-${AWS::Region}"}
    namespace = FUNCTION_GLOBALS["Environment"]["Variables"]["METRICS_NAMESPACE"]["Sub"]
    metrics = [
        metric
        for widget in json.loads(dashboard["DashboardBody"]["Sub"])["widgets"]
        for metric in widget["properties"]["metrics"]
    ]
    assert {metric[0] for metric in metrics if not metric[0].startswith("AWS/")} == {namespace}


def test_outputs_hold_no_secret_and_can_be_pasted() -> None:
    outputs = json.dumps(TEMPLATE["Outputs"])
    assert "resolve" not in outputs
    assert "Secret" not in outputs
    assert "OriginSecret" not in outputs
    for name in ("TryCreate", "TryAppend", "TryRead", "TryFollow"):
        assert TEMPLATE["Outputs"][name]["Value"]["Sub"][0].startswith("curl ")
