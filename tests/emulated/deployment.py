"""`sam deploy` of the built template, as on AWS, against the emulator."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.servers import ROOT, own_environment
from tests.emulated.emulator import SAM, Emulator

BUILT = ROOT / ".aws-sam" / "build" / "template.yaml"
DEPLOY_SECONDS = 600


class DeploymentFailed(RuntimeError):
    """sam ended with an error; the message is its output."""


@dataclass(frozen=True)
class Stack:
    """A deployed stack: its address for clients, and CloudFormation's outputs."""

    name: str
    url: str
    outputs: Mapping[str, str]


def deploy(emulator: Emulator, stack: str, parameters: Mapping[str, str], *, template: Path = BUILT) -> Stack:
    """Create or update a stack and wait until that is done. Raises DeploymentFailed."""
    overrides = [f"{name}={value}" for name, value in parameters.items()]
    run_sam(
        emulator,
        "deploy", "--template-file", str(template), "--stack-name", stack, "--resolve-s3",
        "--s3-prefix", stack, "--capabilities", "CAPABILITY_IAM",
        "--no-confirm-changeset", "--no-fail-on-empty-changeset", "--no-progressbar",
        *(["--parameter-overrides", *overrides] if overrides else []),
    )  # fmt: skip
    return Stack(stack, emulator.url_of(stack), outputs_of(emulator, stack))


def delete(emulator: Emulator, stack: str) -> None:
    """By CloudFormation's own call: `sam delete` would remove the uploaded artifacts too."""
    cloudformation = emulator.client("cloudformation")
    cloudformation.delete_stack(StackName=stack)
    cloudformation.get_waiter("stack_delete_complete").wait(
        StackName=stack, WaiterConfig={"Delay": 2, "MaxAttempts": 120}
    )


def outputs_of(emulator: Emulator, stack: str) -> dict[str, str]:
    [found] = emulator.client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
    return {each["OutputKey"]: each["OutputValue"] for each in found.get("Outputs", [])}


def deploy_as_configured(emulator: Emulator, stack: str, *arguments: str, folder: Path = ROOT) -> Stack:
    """`sam deploy` as its samconfig.toml says, with nobody to answer a question. Raises DeploymentFailed."""
    run_sam(emulator, "deploy", *arguments, folder=folder)
    return Stack(stack, emulator.url_of(stack), outputs_of(emulator, stack))


def run_sam(
    emulator: Emulator,
    *arguments: str,
    folder: Path = BUILT.parent,
    answers: str = "",
    environment: Mapping[str, str] | None = None,
) -> str:
    """In a folder without samconfig.toml everything that decides is in the arguments. Returns the output."""
    run = subprocess.run(
        [str(SAM / "sam"), *arguments],
        cwd=folder,
        env={**own_environment(), **emulator.environment, "SAM_CLI_TELEMETRY": "0", **(environment or {})},
        input=answers,
        capture_output=True,
        text=True,
        timeout=DEPLOY_SECONDS,
        check=False,
    )
    if run.returncode != 0:
        raise DeploymentFailed(f"{' '.join(arguments[:3])}: {run.returncode}\n{run.stdout}\n{run.stderr}")
    return run.stdout + run.stderr
