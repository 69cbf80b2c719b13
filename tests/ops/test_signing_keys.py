"""`make rotate-keys` and `tidemark token`: the keys of webhooks, and tokens, of a stack and of a server."""

import json
import re
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import httpx
import jwt
import pytest
from click.testing import CliRunner

from tests.authorization.tokens import ADMIN, SECRET, bearer
from tests.available import require_engine
from tests.conformance.servers import Server, node, running, tidemark_server
from tests.infra.test_template import TEMPLATE
from tests.ports import free_port
from tests.stack.engines import LocalServices
from tidemark.cli.__main__ import main as tidemark
from tidemark.ops.signing_keys import main

KID = re.compile(r"ds_[\w-]{43}")


@pytest.fixture
def table_name(services: LocalServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    services.create_table(name := f"keys-{uuid.uuid4().hex[:8]}")
    monkeypatch.setenv("TABLE_NAME", name)
    monkeypatch.setenv("WEBHOOK_KEYS", str(tmp_path / "keys"))
    return name


@pytest.fixture
def parameters(services: LocalServices, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """moto's SSM and CloudFormation; the table stays where it is."""
    require_engine("moto")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", free_port(), verbose=False)
    server.start()
    for service in ("SSM", "CLOUDFORMATION"):
        monkeypatch.setenv(f"AWS_ENDPOINT_URL_{service}", "http://{}:{}".format(*server.get_host_and_port()))
    yield
    server.stop()


def create_stack(name: str, **values: str) -> None:
    """A stack with these outputs, which the template has too."""
    assert values.keys() <= TEMPLATE["Outputs"].keys()
    outputs = {each: {"Value": value} for each, value in values.items()}
    template = {"Resources": {"Queue": {"Type": "AWS::SQS::Queue"}}, "Outputs": outputs}
    boto3.client("cloudformation").create_stack(StackName=name, TemplateBody=json.dumps(template))


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_rotate_publishes_a_key_that_signs_later(table_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert printed(capsys) == ["There is no key: the first webhook subscription makes one"]
    assert main(["rotate"]) == 0
    assert main(["rotate"]) == 0
    told, *listed = printed(capsys)[2:]
    assert re.fullmatch(rf"{KID.pattern} is published and signs from \S+ \S+Z on", told)
    assert [line.endswith("  signs") for line in listed] == [True, False]
    assert KID.findall(told) == KID.findall(listed[1])


def test_remove_takes_back_one_key_and_never_the_last(
    table_name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    main(["rotate"])
    main(["rotate"])
    first, second = KID.findall("".join(printed(capsys)[-2:]))
    assert main(["remove", first]) == 0
    assert [path.stem for path in (tmp_path / "keys").iterdir()] == [second]
    assert printed(capsys)[-1].startswith(second)
    assert main(["remove", second]) == 1
    assert "the only key" in capsys.readouterr().err
    assert main(["remove", first]) == 1
    assert f"There is no key {first}" in capsys.readouterr().err


def test_a_stacks_keys_are_found_by_its_outputs(
    table_name: str, parameters: None, capsys: pytest.CaptureFixture[str]
) -> None:
    create_stack("tides", TableName=table_name, WebhookKeys="ssm:/tidemark/1/webhook-keys/")
    assert main(["--stack", "tides", "rotate"]) == 0
    assert main(["--stack", "tides", "rotate"]) == 0
    first, second = KID.findall("".join(printed(capsys)[-2:]))
    assert main(["--stack", "tides", "remove", first]) == 0
    names = [each["Name"] for each in boto3.client("ssm").describe_parameters()["Parameters"]]
    assert names == [f"/tidemark/1/webhook-keys/{second}"]
    capsys.readouterr()
    assert main(["--stack", "nowhere", "list"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_the_keys_of_this_machine_are_rotated_while_its_server_is_stopped(tmp_path: Path) -> None:
    node()
    with running(tidemark_server("asgi", tmp_path)) as server:
        refused = run_local(server, "rotate")
        assert (refused.returncode, "is in use by process" in refused.stderr) == (1, True)
        server.stop()
        made = run_local(server, "rotate")
        assert made.returncode == 0, made.stderr
        assert KID.match(made.stdout)
        server.start()
        with urllib.request.urlopen(f"{server.base_url}/v1/stream/__ds/jwks.json", timeout=60) as response:
            [published] = json.load(response)["keys"]
        assert made.stdout.startswith(published["kid"])


def run_local(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidemark.ops.signing_keys", "--data-dir", str(server.data_dir), *arguments],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


def run(*arguments: str, status: int = 0) -> str:
    """Run `tidemark token` and return the output, or the error."""
    done = CliRunner(env={"AUTH_SECRET": SECRET}).invoke(tidemark, ["token", *arguments])
    assert done.exit_code == status, done.output
    return (done.stderr if status else done.stdout).strip()


def listed(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("list", "--json", *arguments).splitlines()]


def test_a_running_server_lists_revokes_and_refuses_tokens(tmp_path: Path) -> None:
    """Two commands revoke at once, while the server writes."""
    with running(tidemark_server("asgi", tmp_path, AUTH_SECRET=SECRET, ALLOW_ANONYMOUS="")) as server:
        place, stream = ("--data-dir", str(server.data_dir)), f"{server.base_url}/v1/stream/a"
        writer = bearer(ADMIN) | {"Content-Type": "text/plain"}
        assert httpx.put(stream, headers=writer, timeout=60).status_code == 201
        subjects = ("ci/build", "ci/deploy", "bob")
        signed = [run(*place, "--subject", each, "--scopes", "read:v1") for each in subjects]
        ids = [jwt.decode(each, SECRET, ["HS256"])["jti"] for each in signed]
        command = [sys.executable, "-m", "tidemark.cli", "token", "revoke", *place]
        revoking = [subprocess.Popen([*command, each], stdout=subprocess.DEVNULL) for each in ids[:2]]
        while any(each.poll() is None for each in revoking):
            assert httpx.post(stream, headers=writer, content=b"x", timeout=60).status_code == 204
        assert [each.returncode for each in revoking] == [0, 0]
        states = [(each["id"], each["subject"], each["revoked"]) for each in listed(*place)]
        assert sorted(states) == sorted(zip(ids, subjects, (True, True, False), strict=True))
        assert {each["subject"] for each in listed(*place, "--subject", "ci/")} == {*subjects[:2]}
        assert not any(each in run("list", *place) for each in signed)
        asked = [httpx.get(stream, headers={"Authorization": f"Bearer {each}"}) for each in signed]
        assert [each.status_code for each in asked] == [401, 401, 200]


@pytest.fixture
def stack(services: LocalServices, parameters: None) -> str:
    """Makes a stack with a secret, and with a table of the same name."""
    services.create_table(name := f"tokens-{uuid.uuid4().hex[:8]}")
    ssm = boto3.client("ssm")
    for parameter, value in (("/mine", "another" * 8), ("/short", "short")):
        ssm.put_parameter(Name=parameter, Type="SecureString", Value=value, Overwrite=True)
    create_stack(name, TableName=name, TokenSecretName="/mine")
    return name


def test_the_token_of_a_stack_is_listed_in_its_table(stack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    signed = run("--stack", stack, "--hours", "2", "--scopes", "read:agents")
    claims = jwt.decode(signed, "another" * 8, ["HS256"])
    ends = {"expires_at_ms": 1000 * claims["exp"], "scopes": claims["scope"]}
    entry = {"id": claims["jti"], "subject": "", **ends, "revoked": False}
    assert listed("--stack", stack) == [entry]
    assert (7000 < claims["exp"] - time.time() < 7300, claims["scope"]) == (True, "read:agents")
    run("--stack", stack, "revoke", claims["jti"])
    run("revoke", "of-another-issuer", "--hours", "5", "--stack", stack)
    found = listed("--table", stack)
    revoked = [(each["id"], each["revoked"]) for each in found]
    assert revoked == [(claims["jti"], True), ("of-another-issuer", True)]
    later = time.time() + 3 * 3600
    monkeypatch.setattr(time, "time", lambda: later)
    assert listed("--table", stack) == found[1:]


@pytest.mark.parametrize(
    ("arguments", "status", "error"),
    [
        (("list",), 2, "give --stack or --table on AWS, or --data-dir, the folder of a server"),
        (("--data-dir", "nowhere"), 1, "nowhere has no tidemark.db: name the DATA_DIR"),
        (("list", "--table", "missing"), 1, "The list of tokens: ResourceNotFoundException"),
        (("--stack", "missing", "list"), 1, "The stack missing cannot be described"),
        (("revoke", "x", "--stack", "{}"), 2, "x is not in the list: give --hours, its longest lifetime"),
        (("--secret-name", "/none"), 1, "The parameter /none cannot be read: ParameterNotFound"),
        (("--secret-name", "/short"), 2, "the secret has 5 bytes and must have 32"),
    ],
)
def test_a_command_that_cannot_be_carried_out_is_an_error_of_one_line(
    stack: str, arguments: tuple[str, ...], status: int, error: str
) -> None:
    said = run(*(each.format(stack) for each in arguments), status=status)
    assert said.splitlines()[-1].startswith(f"Error: {error}")


def test_a_token_without_a_list_is_printed_with_a_note() -> None:
    done = CliRunner(env={"AUTH_SECRET": SECRET}).invoke(tidemark, ["token"])
    token_id = jwt.decode(done.stdout.strip(), SECRET, ["HS256"])["jti"]
    assert done.stderr == f"Token {token_id} is in no list: give --stack, --table or --data-dir\n"
