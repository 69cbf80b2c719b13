"""A stranger's first deployment: a bare clone, SAM alone on the path, and SAM's two commands."""

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import jwt
import pytest

from tests.conformance.servers import ROOT, own_environment, running, temporary_directory
from tests.emulated.deployment import DeploymentFailed, Stack, delete, deploy, outputs_of, run_sam
from tests.emulated.emulator import SAM, Emulator
from tests.infra.test_template import TEMPLATE
from tidemark.http.security import origin
from tidemark.observability.invocation import EDGE_VERSION_HEADER

pytestmark = pytest.mark.emulated

STACK = "tidemark"
SECRET = f"/tidemark/{STACK}/auth-secret"
#: What a bare system has beside SAM. Python is not among it: SAM's own does.
TOOLS = ("chmod", "cp", "find", "git", "make", "rm", "sed", "sh")
#: SAM's own questions: name, region; changes, roles, rollback; save, into which file, as which environment.
OTHER_QUESTIONS = 8


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with temporary_directory() as directory:
        emulator = Emulator(directory, [STACK, "staging", "refused"], enforce_iam=True)
        with running(emulator.server):
            yield emulator


@pytest.fixture(scope="module")
def clone(emulator: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree as git has it, built by `sam build`."""
    folder, path = tmp_path_factory.mktemp("clone") / "tidemark", tmp_path_factory.mktemp("bin")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    for tool in TOOLS:
        (path / tool).symlink_to(shutil.which(tool) or f"{tool} is missing")
    (path / "sam").symlink_to(SAM / "sam")
    said = run_sam(emulator, "build", folder=folder, environment={"PATH": str(path)})
    assert "python3.14 is missing, so the layer has no bytecode" in said
    return folder


@pytest.fixture(scope="module")
def printed(emulator: Emulator, clone: Path) -> str:
    """By `sam deploy`, on a terminal of its least width."""
    return run_sam(emulator, "deploy", folder=clone)


@pytest.fixture(scope="module")
def stack(emulator: Emulator, printed: str) -> Stack:
    return Stack(STACK, emulator.url_of(STACK), outputs_of(emulator, STACK))


def secret_of(emulator: Emulator) -> str:
    found = emulator.client("ssm").get_parameter(Name=SECRET, WithDecryption=True)
    secret: str = found["Parameter"]["Value"]
    return secret


def client_of(emulator: Emulator, stack: Stack) -> httpx.Client:
    """It speaks as CloudFront does, with the stack's own origin secret, and has a token."""
    functions = emulator.client("lambda")
    names = [each["FunctionName"] for each in functions.list_functions()["Functions"]]
    [write] = [name for name in names if name.startswith(f"{STACK}-WriteFunction")]
    variables = functions.get_function_configuration(FunctionName=write)["Environment"]["Variables"]
    token = jwt.encode({"exp": 2**31, "scope": "read:v1 write:v1 manage:v1"}, secret_of(emulator), "HS256")
    headers = {origin.HEADER: variables["EDGE_SECRET"], EDGE_VERSION_HEADER: "2"}
    headers |= {"Authorization": f"Bearer {token}", "Content-Type": "text/plain"}
    return httpx.Client(base_url=stack.url, timeout=90, trust_env=False, headers=headers)


def test_sam_build_and_sam_deploy_make_a_stack_that_works(emulator: Emulator, stack: Stack) -> None:
    """With no question, no secret made before, and no Python of the project."""
    with client_of(emulator, stack) as client:
        assert client.put("/v1/stream/first").status_code == 201
        assert client.post("/v1/stream/first", content=b"high tide").status_code == 204
        assert client.get("/v1/stream/first", params={"offset": "-1"}).text == "high tide"
        stranger = client.get("/v1/stream/first", headers={"Authorization": ""})
        assert stranger.status_code == 401
    assert httpx.get(f"{stack.url}/v1/stream/first", timeout=60, trust_env=False).status_code == 403
    assert "functions at once" in stack.outputs["Readers"]


def test_the_command_for_a_token_works_as_copied(emulator: Emulator, stack: Stack, printed: str) -> None:
    """From the table that SAM prints, in a folder of the project. CloudFront is not emulated, so the other
    command runs in tests/infra/test_deployment.py."""
    rows = dict(re.findall(r"^Key +(\w+) *\nDescription[^\0]*?\nValue +(.*?) *\n", printed, re.MULTILINE))
    assert {name: rows[name] for name in ("Url", "Console", "Token", "Try")}.items() <= stack.outputs.items()
    made = subprocess.run(
        ["bash", "-c", f"{rows['Token']}; echo $TIDEMARK_TOKEN"],
        cwd=ROOT, env=own_environment() | emulator.environment | {"MAKEFLAGS": "LOCAL=", "MAKELEVEL": "0"},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    with client_of(emulator, stack) as client:
        headers = {"Authorization": f"Bearer {made.stdout.strip()}"}
        assert client.put("/v1/stream/copied", headers=headers).status_code == 201, made.stderr


def test_a_token_of_one_stack_is_worth_nothing_in_another_of_the_account(
    emulator: Emulator, clone: Path, stack: Stack
) -> None:
    """Until an operator names the same secret for both, which a later deployment then keeps."""
    built = clone / ".aws-sam" / "build" / "template.yaml"
    assert stack.outputs["TokenSecretName"] == SECRET
    staging = deploy(emulator, "staging", {"Edge": "false"}, template=built)
    assert staging.outputs["TokenSecretName"] == "/tidemark/staging/auth-secret"
    with client_of(emulator, stack) as client:
        assert client.put(f"{staging.url}/v1/stream/first").status_code == 401
        deploy(emulator, "staging", {"AuthSecretName": SECRET}, template=built)
        kept = deploy(emulator, "staging", {"LogLevel": "INFO"}, template=built)
        assert kept.outputs["TokenSecretName"] == SECRET
        assert client.put(f"{staging.url}/v1/stream/first").status_code == 201


def test_enter_to_every_question_of_a_guided_deployment_takes_over_what_a_deleted_stack_left(
    emulator: Emulator, clone: Path, stack: Stack
) -> None:
    """The secret for tokens stays, so tokens stay valid; so does the table."""
    secret = secret_of(emulator)
    delete(emulator, STACK)
    table = emulator.client("dynamodb").describe_table(TableName=stack.outputs["TableName"])["Table"]
    assert table["TableStatus"] == "ACTIVE"
    said = run_sam(emulator, "deploy", "--guided", folder=clone, answers="\n" * 100)
    questions = re.findall(r"\[[^\]\n]*\]: ", said)
    assert len(questions) == len(TEMPLATE["Parameters"]) + OTHER_QUESTIONS
    assert secret_of(emulator) == secret
    with client_of(emulator, Stack(STACK, emulator.url_of(STACK), {})) as client:
        assert client.put("/v1/stream/second").status_code == 201
    saved = tomllib.loads((clone / "samconfig.toml").read_text())["default"]["deploy"]["parameters"]
    assert "AuthSecretName=" in saved["parameter_overrides"]


def test_what_the_stack_refuses_is_a_sentence_among_its_events(emulator: Emulator, clone: Path) -> None:
    """Before any function is made. SAM prints the events."""
    given = {"AllowAnonymous": "true", "Edge": "false", "ReaderConcurrency": "99999"}
    with pytest.raises(DeploymentFailed, match=r"CREATE_FAILED +Custom::Setup"):
        deploy(emulator, "refused", given, template=clone / ".aws-sam" / "build" / "template.yaml")
    events = emulator.client("cloudformation").describe_stack_events(StackName="refused")["StackEvents"]
    reasons = [
        each.get("ResourceStatusReason", "") for each in events if each["LogicalResourceId"] == "Setup"
    ]
    assert any("would reserve 299997 concurrent executions" in each for each in reasons)
    assert not {"Table", "Bucket", "WriteFunction"} & {each["LogicalResourceId"] for each in events}


def test_a_refused_stack_is_deleted_and_deployed_again(emulator: Emulator, clone: Path) -> None:
    """After the test above, and as docs/operations/deploy.md says. Nothing protected is in the way."""
    given, template = (
        {"AllowAnonymous": "true", "Edge": "false"},
        clone / ".aws-sam" / "build" / "template.yaml",
    )
    with pytest.raises(DeploymentFailed, match="ROLLBACK_COMPLETE state and can not be updated"):
        deploy(emulator, "refused", given, template=template)
    delete(emulator, "refused")
    assert "TableName" in deploy(emulator, "refused", given, template=template).outputs


def test_a_creation_that_fails_later_leaves_its_table_and_is_deleted(emulator: Emulator, clone: Path) -> None:
    """As docs/operations/deploy.md says of ROLLBACK_FAILED: nothing deletes a table that is protected."""
    template = clone / ".aws-sam" / "build" / "failing.yaml"
    service = {"Fn::GetAtt": ["OriginSecretFunction", "Arn"]}
    asked = {"ServiceToken": service, "AuthSecretName": "", "TableUnitsPerSecond": "0"}
    failing = {
        "Type": "Custom::Setup",
        "DependsOn": "Table",
        "Properties": asked | {"ReaderConcurrency": "99999"},
    }
    text = (template.parent / "template.yaml").read_text()
    template.write_text(text.replace("\nResources:\n", f"\nResources:\n  Failing: {json.dumps(failing)}\n"))
    given = {"AllowAnonymous": "true", "Edge": "false"}
    with pytest.raises(DeploymentFailed):
        deploy(emulator, "stuck", given, template=template)
    [stuck] = emulator.client("cloudformation").describe_stacks(StackName="stuck")["Stacks"]
    assert stuck["StackStatus"] == "ROLLBACK_FAILED"
    with pytest.raises(DeploymentFailed, match="ROLLBACK_FAILED state and can not be updated"):
        deploy(emulator, "stuck", given, template=template)
    delete(emulator, "stuck")
    tables = emulator.client("dynamodb")
    [left] = [each for each in tables.list_tables()["TableNames"] if each.startswith("stuck-")]
    tables.update_table(TableName=left, DeletionProtectionEnabled=False)
    tables.delete_table(TableName=left)
