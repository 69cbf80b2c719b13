"""`make deploy`, after the main stack: the additional stacks `<stack>-container` and `<stack>-pipeline`.

A stack is deployed if samconfig.toml has its section (`[container.deploy.parameters]`). Missing parameters
come from the main stack, whose parameters and outputs have the same names.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import boto3
from botocore.exceptions import ClientError

#: The outputs that a person needs first. SAM prints all outputs in CloudFormation's order, and wraps them.
FIRST = ("Url", "Console", "Token", "Try")
#: The folder of each stack's template.
PARTS = ("container", "pipeline")


def main(arguments: list[str], config: Path = Path("samconfig.toml")) -> int:
    """Deploy, or with `--remove` delete, the stacks; return SAM's exit code. The main stack is deleted first,
    because it uses the container's origin."""
    sections = tomllib.loads(config.read_text())
    main = sections["default"]["deploy"]["parameters"]
    name, region, parts = main["stack_name"], main.get("region"), [each for each in PARTS if each in sections]
    deploy, code = ["deploy", "--config-file", str(config.resolve())], 0
    if "--remove" in arguments:
        delete = ["delete", *(["--region", region] if region else []), *arguments[1:]]
        for stack in (name, *(f"{name}-{part}" for part in parts)):
            code = code or run_sam(*delete, "--stack-name", stack)
        return code
    for part in parts:
        stack, template = f"{name}-{part}", f"{part}/template.yaml"
        declared = re.findall(r"^  (\w+):", Path(template).read_text(), re.MULTILINE)
        known = values_of(name, region)
        inherited = [f"{key}={json.dumps(known[key])}" for key in declared if key in known]
        own = sections[part]["deploy"]["parameters"].get("parameter_overrides", "")
        where = ["--stack-name", stack, "--s3-prefix", stack, "--template-file", template]
        code = code or run_sam(*deploy, *where, "--parameter-overrides", " ".join([*inherited, own]))
    if not code and "container" in parts:
        origin = values_of(f"{name}-container", region)["Origin"]
        code = run_sam(*deploy, "--parameter-overrides", f"LiveOrigin={origin}")
    if not code:
        with suppress(ClientError):  # ARGS may name another stack.
            known = values_of(name, region)
            print("\n".join(f"{key:<8} {known[key]}" for key in FIRST if key in known))
    return code


def values_of(stack: str, region: str | None) -> dict[str, str]:
    """Return the parameters and outputs of a stack, whose names differ."""
    [found] = boto3.client("cloudformation", region_name=region).describe_stacks(StackName=stack)["Stacks"]
    values = {each["ParameterKey"]: each["ParameterValue"] for each in found.get("Parameters", [])}
    return values | {each["OutputKey"]: each["OutputValue"] for each in found.get("Outputs", [])}


def run_sam(*command: str) -> int:
    return subprocess.run(["sam", *command], check=False).returncode  # noqa: S603, S607 - the user's own


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
