"""The edge: what is cached by what, and which origin a request goes to. The function runs under Node."""

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any
from urllib.parse import quote, unquote_to_bytes, urlencode

import pytest
import yaml
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from functions.setup.app import cache_key
from tests.infra.test_template import (
    DISTRIBUTION,
    FUNCTION_GLOBALS,
    FUNCTIONS,
    ORIGINS,
    ROOT,
    TEMPLATE,
    CloudFormationLoader,
)
from tests.stack.events import decode_path
from tests.stack.gateway import RefusedByGateway, check_head, is_live, written_path
from tidemark.http.security import authorization, origin
from tidemark.observability.invocation import EDGE_VERSION, EDGE_VERSION_HEADER, read_edge_path
from tidemark.observability.metrics import COUNTERS

SOURCE = ROOT / "edge" / "route.js"
RESOURCES = TEMPLATE["Resources"]
CONTAINER = yaml.load((ROOT / "container" / "template.yaml").read_text(), CloudFormationLoader)["Resources"]

#: CloudFront's own module, in whose place a recorder stands.
HARNESS = """
const chosen = [];
const cf = { selectRequestOriginById: id => chosen.push(id) };
%s
require('readline').createInterface({ input: process.stdin }).on('line', line => {
    console.log(JSON.stringify(JSON.parse(line).map(event => {
        chosen.length = 0;
        return { request: handler(event), origin: chosen[0] || 'api' };
    })));
});
"""
Route = Callable[..., list[dict[str, Any]]]


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
            "cookies": {"session": {"value": "secret"}},
        },
    }


@pytest.fixture(scope="module")
def route() -> Iterator[Route]:
    """What the function makes of requests, in one process of Node."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is missing: the edge's function cannot be tested")
    code = SOURCE.read_text().replace("import cf from 'cloudfront';\n", "")
    command = [node, "--input-type=commonjs", "-e", HARNESS % code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def ask(*events: dict[str, Any]) -> list[dict[str, Any]]:
            print(json.dumps(events), file=asked, flush=True)
            routed: list[dict[str, Any]] = json.loads(answers.readline())
            return routed

        yield ask


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
def test_reads_that_wait_go_to_the_live_function(
    route: Route, method: str, query: dict[str, str], origin: str
) -> None:
    """However the wait is written: plain reads have the read function's concurrency for themselves. What is
    no kind of wait gets its 400 there too."""
    [routed] = route(event(method, query))
    assert routed["origin"] == origin
    assert routed["request"]["querystring"] == {name: {"value": value} for name, value in query.items()}
    assert routed["request"]["uri"] == "/v1/stream/a"
    assert routed["request"]["cookies"] == {}, "AWS's own policy would forward them"
    assert is_live(method, urlencode(query)) == (origin == "live"), "the local edge decides otherwise"


def test_a_wait_that_is_given_twice_gets_its_400_from_the_live_function(route: Route) -> None:
    assert is_live("GET", "live=sse&live=long-poll")
    asked = event("GET", {"live": "sse"})
    asked["request"]["querystring"]["live"]["multiValue"] = [{"value": "sse"}, {"value": "long-poll"}]
    assert route(asked)[0]["origin"] == "live"


def test_a_token_makes_room_for_the_signature(route: Route) -> None:
    name = authorization.FORWARDED.lower()
    streamed, plain = route(
        event("GET", {"live": "sse"}, authorization="Bearer x"), event("GET", {}, authorization="Bearer x")
    )
    assert streamed["request"]["headers"][name] == {"value": "Bearer x"}
    assert name not in plain["request"]["headers"]


def test_what_the_edge_says_nobody_else_can_say(route: Route) -> None:
    forged = {
        "x_tidemark_authorization": "Bearer forged",
        "x_tidemark_host": "evil.example",
        "x_tidemark_edge_version": "0",
        "x_tidemark_path": "/v1/stream/b",
        "x_tidemark_content_type": "text/plain",
    }
    for routed in route(event("GET", {}, **forged), event("GET", {"live": "sse"}, **forged)):
        headers = routed["request"]["headers"]
        assert authorization.FORWARDED.lower() not in headers
        assert headers["x-tidemark-host"] == {"value": "streams.example"}
        assert headers[EDGE_VERSION_HEADER.lower()] == {"value": EDGE_VERSION}
        assert "x-tidemark-content-type" not in headers


def test_a_body_goes_to_the_http_api_as_bytes(route: Route) -> None:
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


def test_an_encoded_name_of_a_parameter_gets_400_at_the_edge(route: Route) -> None:
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
def test_each_origin_gets_the_path_as_sent_in_characters_that_it_leaves_alone(route: Route, uri: str) -> None:
    """The HTTP API decodes twice, cuts at a question mark and refuses what it cannot decode. The live
    function's address checks a signature over a form of the path. Both get the path written anew, so that
    what is wrong gets its answer from us too. The local edge does the same."""
    live, api = (each["request"] for each in route(event("GET", {"live": "sse"}, uri), event("GET", {}, uri)))
    written: str = live["uri"]
    assert written == api["uri"]
    assert re.fullmatch(r"/[A-Za-z0-9/_.~-]*", written)
    assert {".", ".."}.isdisjoint(written.split("/")), "an origin may resolve these"
    assert decode_path(written) == written == written_path(uri.encode()).decode()
    assert unquote_to_bytes(read_edge_path(written)) == unquote_to_bytes(uri.encode())
    assert len({signature(written, signer) for signer in (SigV4Auth, S3SigV4Auth)}) == 1


def signature(path: str, signer: type[SigV4Auth]) -> str:
    """By one of two ways to sign a path: encoded once more, as the rules have it, or as it was sent."""
    request = AWSRequest("GET", f"https://live.example{path}", {"X-Amz-Content-SHA256": "UNSIGNED-PAYLOAD"})
    request.context["timestamp"] = "20300115T120000Z"
    auth = signer(Credentials("key", "secret"), "lambda", "us-east-1")
    return auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)


def test_no_two_paths_are_written_alike() -> None:
    """Else one would be served the other's cached answer."""
    parts = ["~", "%7E", "%", "%25", "%2F", "2F", "+", "%2B", ".", "/", "e"]
    paths = ["/" + "".join(each) for each in itertools.product(parts, repeat=4)]
    assert len({written_path(path.encode()) for path in paths}) == len(set(paths))


#: The headers of a browser's script beside its token, and CloudFront's own (viewer, device, place): 48.
USUAL = {f"x-{number:02}": "x" * 32 for number in range(48)}


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
        "raw_path": written_path(f"/v1/stream/{quote(name)}".encode()),
        "query_string": b"offset=0000000000000000&cursor=1234567890123456",
        "headers": [(header.encode(), value.encode()) for header, value in headers.items()],
    }
    with nullcontext() if fits else pytest.raises(RefusedByGateway):
        check_head(scope)


def test_the_cache_key_tells_answers_apart() -> None:
    """Whoever waits for the same shares a request; whoever may not have it never meets it."""
    kinds = [cache_key(is_private=each) for each in (True, False)]
    keyed, open_to_all = (each["ParametersInCacheKeyAndForwardedToOrigin"] for each in kinds)
    private, public = (each["QueryStringsConfig"] for each in (keyed, open_to_all))
    assert private == {"QueryStringBehavior": "all"}, "CloudFront takes ten names, and a read has more"
    assert public["QueryStringBehavior"] == "allExcept"
    assert public["QueryStrings"]["Items"] == [authorization.QUERY_NAME], "everybody gets the same"
    assert keyed["HeadersConfig"]["Headers"]["Items"] == ["Authorization", authorization.FORWARDED]
    assert open_to_all["HeadersConfig"] == {"HeaderBehavior": "none"}
    assert keyed["CookiesConfig"] == open_to_all["CookiesConfig"] == {"CookieBehavior": "none"}
    which = {"If": ["HasEdge", {"If": ["IsPrivate", "private", "public"]}, ""]}
    assert RESOURCES["Setup"]["Properties"]["CacheKey"] == which
    assert DISTRIBUTION["DefaultCacheBehavior"]["CachePolicyId"] == {"GetAtt": "Setup.CachePolicyId"}


def test_the_application_alone_says_what_is_kept() -> None:
    """A minimum would overrule its `no-store`; so would the ten seconds that errors are kept unasked."""
    for key in (cache_key(is_private=each) for each in (True, False)):
        assert (key["MinTTL"], key["DefaultTTL"]) == (0, 0)
    kept = {each["ErrorCode"]: each["ErrorCachingMinTTL"] for each in DISTRIBUTION["CustomErrorResponses"]}
    assert {404, 500, 502, 503, 504} <= kept.keys()
    assert set(kept.values()) == {0}
    assert all(
        each.keys() == {"ErrorCode", "ErrorCachingMinTTL"} for each in DISTRIBUTION["CustomErrorResponses"]
    )


def test_origins_are_reached_by_the_edge_alone() -> None:
    """The function's address takes signed requests, the HTTP API a word that only the edge knows. The edge is
    changed after the functions, which understand older edges."""
    access = RESOURCES["EdgeAccess"]["Properties"]["OriginAccessControlConfig"]
    assert (access["OriginAccessControlOriginType"], access["SigningBehavior"]) == ("lambda", "always")
    assert ORIGINS["live"]["OriginAccessControlId"]["If"][2] == {"Ref": "EdgeAccess"}
    for name in ("EdgeMayCallLiveUrl", "EdgeMayCallLive"):
        assert "distribution/${Distribution}" in RESOURCES[name]["Properties"]["SourceArn"]["Sub"]
    own = {"Sub": "{{resolve:ssm:${EdgeSecretName}}}"}
    for each in ORIGINS.values():
        [word] = each["OriginCustomHeaders"]
        assert word["HeaderName"] == origin.HEADER
        assert word["HeaderValue"] == {"If": ["HasEdgeSecret", own, MADE_WORD]}
    assert set(RESOURCES["EdgeRoute"]["DependsOn"]) == {"ApiMayCallRead", "ApiMayCallWrite", "LiveFunction"}


MADE_WORD = {"GetAtt": "OriginSecret.Value"}


def resolve(part: Any, references: dict[str, str]) -> Any:
    """What CloudFormation makes of `!Ref`, `!If`, `!Sub`, `!Split` and `!Select`."""
    if not isinstance(part, dict):
        return part
    [(name, inner)] = part.items()
    if name == "If":
        return resolve(inner[1 if holds(CONDITIONS[inner[0]], references) else 2], references)
    if name == "Ref":
        return references[inner]
    if name == "Sub":
        text, named = (inner, {}) if isinstance(inner, str) else inner
        known = references | {key: resolve(value, references) for key, value in named.items()}
        return re.sub(r"\$\{([\w:.]+)\}", lambda found: known[found[1]], text)
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
    for name in ("WriteFunction", "WriterFunction", "ReadFunction", "LiveFunction", "ProxyFunction"):
        secret = FUNCTIONS[name]["Environment"]["Variables"]["EDGE_SECRET"]
        assert secret == {"If": ["MakesEdgeWord", MADE_WORD, ""]}
    variables = FUNCTION_GLOBALS["Environment"]["Variables"]
    assert variables["EDGE_SECRET_NAME"] == {"Ref": "EdgeSecretName"}
    assert variables["EDGE_ONLY"] == {"If": ["IsEdgeOnly", "true", "false"]}


def test_the_edge_says_its_word_before_anybody_asks_for_it() -> None:
    """CloudFront takes minutes to hear of a change, and functions seconds: so Edge=optional changes what
    the functions ask for and nothing else, and a word can be changed behind it without a gap."""
    assert RESOURCES["OriginSecret"]["Condition"] == "MakesEdgeWord"
    for given in (
        {},
        {"EdgeSecretName": "/w"},
        {"EdgeName": "streams.example.org,arn:c"},
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


ALARMS = {
    name: each
    for template in (RESOURCES, CONTAINER)
    for name, each in template.items()
    if each["Type"] == "AWS::CloudWatch::Alarm"
}


def metrics_of(alarm: dict[str, Any]) -> int:
    """AWS bills an alarm by the metrics that it looks at."""
    return sum("MetricStat" in each for each in alarm["Properties"].get("Metrics", [])) or 1


def test_alarms_cost_nothing_unless_somebody_is_told() -> None:
    only_with = {"Edge": "HasEdgeAlarm", "Socket": "HasSocketAlarms", "Writer": "HasWriterAlarms"}
    for name, alarm in ALARMS.items():
        part = re.split("(?<=[a-z])(?=[A-Z])", name)[0]
        assert alarm["Condition"] == only_with.get(part, "HasAlarms"), name
        told = [alarm["Properties"][state] for state in ("AlarmActions", "OKActions")]
        assert told == [[{"Ref": "AlarmTopicArn"}]] * 2, "of its beginning and of its end"
    own = sum(metrics_of(alarm) for name, alarm in ALARMS.items() if name not in CONTAINER)
    costs = (ROOT / "docs" / "costs.md").read_text()
    assert re.search(rf"\*\*{own / 10:.2f}\*\* .* {own} metrics of alarms at 0.10", costs)


def test_a_function_on_a_schedule_that_stands_still_is_an_alarm() -> None:
    """No value is what a schedule that is off looks like, and a new stack: an alarm begins with insufficient
    data, so that only the way back to that state is a page."""
    for name in ("JanitorStoppedAlarm", "PackerStoppedAlarm"):
        alarm = ALARMS[name]["Properties"]
        assert (alarm["MetricName"], alarm["ComparisonOperator"]) == ("Invocations", "LessThanThreshold")
        assert (alarm["TreatMissingData"], alarm["Threshold"]) == ("missing", 1), "no value that breaches"
        assert alarm["InsufficientDataActions"] == alarm["AlarmActions"]
        assert alarm["Period"] * alarm["EvaluationPeriods"] > 2 * 5 * 60, "two rounds may be late"
    breaching = {
        name for name, each in ALARMS.items() if each["Properties"].get("TreatMissingData") == "breaching"
    }
    assert (breaching, CONTAINER["TasksAlarm"]["DependsOn"]) == ({"TasksAlarm"}, "Service")


@pytest.mark.parametrize(
    ("refused", "requests", "sounds"),
    [(0.84, 0.84, False), (9, 9, False), (40, 100, False), (60, 100, True), (11, 11, True)],
)
def test_refused_requests_page_if_they_are_most(refused: float, requests: float, *, sounds: bool) -> None:
    """Both are for a second, and counted in five minutes."""
    alarm = ALARMS["ClientErrorsAlarm"]["Properties"]
    counts = {"some": refused * 300, "all": requests * 300, "IF": lambda asked, yes, no: yes if asked else no}
    [expression] = [each["Expression"] for each in alarm["Metrics"] if "Expression" in each]
    assert (eval(expression, {"__builtins__": {}}, counts) > alarm["Threshold"]) == sounds


def test_each_alarm_has_its_entry_in_the_page_for_whoever_is_on_call() -> None:
    """What it means, what to look at, and what to do."""
    page = (ROOT / "docs" / "operations" / "watch.md").read_text()
    _, _, section = page.partition("## An alarm sounds\n")
    rows = [
        line.strip("|").split("|") for line in section.partition("\n## ")[0].splitlines() if "Alarm`" in line
    ]
    entries = [name for names, *_ in rows for name in re.findall(r"`(\w+Alarm)`", names)]
    assert sorted(entries) == sorted(ALARMS)
    assert [row for row in rows if len(row) != 4 or not all(cell.strip() for cell in row)] == []


def test_whatever_answers_or_is_asked_is_watched_for_errors() -> None:
    watched = json.dumps([alarm["Properties"] for alarm in ALARMS.values()])
    answering = {*FUNCTIONS, "Api", "Table", "Distribution", "write", "read", "live", "socket"}
    assert [name for name in answering if f'"{name}"' not in watched] == []


def test_an_alarm_on_a_metric_of_ours_watches_what_a_function_reports() -> None:
    """A name that is misspelt on either side would be an alarm that never fires."""
    reported = {each.title.title().replace("_", "") for each in COUNTERS} | {"PackingLag"}
    for alarm in (each["Properties"] for each in ALARMS.values()):
        for service in [each["Value"] for each in alarm.get("Dimensions", ()) if each["Name"] == "service"]:
            assert alarm["MetricName"] in reported
            assert f'("{service}", _settings' in (ROOT / "functions" / service / "app.py").read_text()


def test_a_name_of_ones_own_comes_with_its_certificate() -> None:
    given = DEFAULTS | {"EdgeName": "streams.example.org,arn:aws:acm:us-east-1:1:certificate/2"}
    certificate = DISTRIBUTION["ViewerCertificate"]["If"][1]["AcmCertificateArn"]
    assert resolve(certificate, given) == "arn:aws:acm:us-east-1:1:certificate/2"
    assert resolve(certificate, DEFAULTS) == "", "Select fails where there is nothing to choose from"
    assert resolve(DISTRIBUTION["Aliases"]["If"][1][0], given) == "streams.example.org"
    pattern = TEMPLATE["Parameters"]["EdgeName"]["AllowedPattern"]
    assert re.fullmatch(pattern, given["EdgeName"])
    assert not re.fullmatch(pattern, "streams.example.org")


LOGGED = {
    "$context.identity.sourceIp": "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff",
    "$context.requestTime": "15/Jan/2030:12:00:00 +0000",
    "$context.path": "/v1/stream/agents/0b1c2d3e-0b1c-0b1c-0b1c-0b1c2d3e4f50",
    "$context.requestId": "JKJaXmPLvHcESHA=",
}


def test_access_logs_have_the_address_of_each_request_and_no_query() -> None:
    """Tokens may be in queries (`access_token`) and headers. A stack logs nothing unless it is asked to. A
    line is JSON, and the page has the price, at $0.50 for a gigabyte."""
    api = RESOURCES["Api"]["Properties"]["AccessLogSettings"]["If"]
    socket = RESOURCES["SocketStage"]["Properties"]["AccessLogSettings"]["If"]
    assert [api[0], socket[0], DEFAULTS["AccessLogs"]] == ["LogsAccess", "LogsAccess", "false"]
    lines = [each[1]["Format"] for each in (api, socket)]
    for line in lines:
        assert "$context.identity.sourceIp" in json.loads(line).values()
        assert set(json.loads(line).values()) <= {*LOGGED, *(f"$context.{name}" for name in HARMLESS)}
    fields = RESOURCES["EdgeLogDelivery"]["Properties"]["RecordFields"]
    assert {"c-ip", "sc-status", "cs-uri-stem"} <= set(fields)
    assert {"cs-uri-query", "cs(Referer)", "cs(Cookie)"}.isdisjoint(fields)
    assert {"Logging", "Cookies"}.isdisjoint(DISTRIBUTION)
    assert "RealtimeLogConfigArn" not in DISTRIBUTION["DefaultCacheBehavior"]
    full = re.sub(r"\$context[.\w]+", lambda found: LOGGED.get(found[0], "GET"), lines[0])
    edge = json.dumps(dict.fromkeys(fields, "x" * 16))
    price = 0.5 * (len(full) + len(edge)) / 1000
    assert f"${price:.2f} a million requests" in (ROOT / "docs" / "operations" / "watch.md").read_text()


#: Fields of an access log in which no client can put a token.
HARMLESS = ("httpMethod", "status", "responseLatency", "eventType", "routeKey", "connectionId")


def test_two_stacks_of_one_account_keep_apart() -> None:
    """Names at the edge, and dashboards', are the account's: a stack of the same name may be in another
    region. Metrics are counted by stack."""
    an_id = {"Id": {"Select": [2, {"Split": ["/", {"Ref": "AWS::StackId"}]}]}}
    names = [
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
        for widget in json.loads(dashboard["DashboardBody"]["Sub"][0])["widgets"]
        for metric in widget["properties"]["metrics"]
    ]
    assert {metric[0] for metric in metrics if not metric[0].startswith(("AWS/", "..."))} == {namespace}
