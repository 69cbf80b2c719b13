"""What the template's roles may do, in moto's opinion.

moto's CloudFormation makes the roles of the expanded template, with its own reading of `Fn::Sub`, `Fn::If`
and the rest; moto's IAM then judges each call. Neither shares code with SAM, our tests of the template,
or the emulator that the stack is deployed into (tests/emulated). moto ignores the condition operator
`ForAllValues:StringLike`, so that one is judged here.
"""

import ast
import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import boto3
import pytest

pytest.importorskip("moto", reason="moto is not installed")

from moto import mock_aws
from moto.iam.access_control import IAMPolicyStatement, PermissionResult

#: What the roles stand on; the rest of the template says nothing about rights.
KINDS: Final = tuple(
    f"AWS::{kind}"
    for kind in (
        "IAM::Role",
        "IAM::ManagedPolicy",
        "DynamoDB::Table",
        "S3::Bucket",
        "SQS::Queue",
        "Logs::LogGroup",
    )
)
#: The name of the WebSocket API, which moto's CloudFormation cannot make.
SOCKET_API: Final = "a1b2c3d4e5"
#: The prefix of a process's queues where no stack gave it one (`Settings.queue_prefix`).
QUEUES: Final = "tidemark-wake-"
#: What stands here for the name of the stack's queue of subscriptions.
SUBSCRIPTIONS: Final = "tidemark-subscriptions"
#: The beginning of the names of webhook keys, where no stack gave its id.
WEBHOOK_KEYS: Final = "/tidemark/webhook-keys/"
ACCOUNT: Final = "arn:aws:{service}:us-east-1:123456789012:{name}"
#: The function that the proxy invokes, in place of a resource that runs code.
PIPE: Final = ACCOUNT.format(service="lambda", name="function:pipe")


@dataclass(frozen=True, slots=True)
class Roles:
    """The statements of each function's role; `names` are those of the stack's resources."""

    statements: dict[str, list[dict[str, Any]]]
    names: dict[str, str]
    stack_id: str

    def allow(self, function: str, action: str, target: str, keys: Sequence[str] = ()) -> bool:
        """Whether its role lets it carry out `action` on `target` (`kind:name`, as the probe reports it)."""
        return any(
            IAMPolicyStatement(statement).is_action_permitted(action, self.arn_of(target))
            == PermissionResult.PERMITTED
            and met(statement.get("Condition"), keys)
            for statement in self.statements[function]
        )

    def arn_of(self, target: str) -> str:
        kind, _, name = target.partition(":")
        if kind == "table":
            return ACCOUNT.format(service="dynamodb", name=f"table/{name or self.names['Table']}")
        stack = self.stack_id.split("/")[2]
        if kind == "queue":
            own = name.replace(QUEUES, f"{QUEUES}{stack}-", 1)
            if name == SUBSCRIPTIONS:
                own = self.names["SubscriptionsQueue"].rpartition("/")[2]
            return ACCOUNT.format(service="sqs", name=own)
        if kind == "connection":
            name = f"{SOCKET_API}/v1/POST/@connections/{name}"
            return ACCOUNT.format(service="execute-api", name=name)
        if kind == "parameter":
            own = name.replace(WEBHOOK_KEYS, f"/tidemark/{stack}/webhook-keys/", 1)
            return ACCOUNT.format(service="ssm", name=f"parameter{own}")
        if kind == "bucket":
            return f"arn:aws:s3:::{name or self.names['Bucket']}"
        return f"arn:aws:s3:::{self.names['Bucket']}/{name}" if kind == "object" else "*"


def met(condition: dict[str, Any] | None, keys: Sequence[str]) -> bool:
    """`ForAllValues` holds where there is no key at all, as IAM has it."""
    if condition is None:
        return True
    patterns = condition["ForAllValues:StringLike"]["dynamodb:LeadingKeys"]
    known = {"ForAllValues:StringLike": {"dynamodb:LeadingKeys": patterns}}
    assert condition == known, "a condition that nothing here can judge"
    return all(any(fnmatchcase(key, pattern) for pattern in patterns) for key in keys)


def make_roles(template: dict[str, Any], **parameters: str) -> Roles:
    """Deploys the roles of an expanded template into moto."""
    parts: dict[str, Any] = {
        name: template[name] for name in ("Parameters", "Conditions", "Mappings") if name in template
    }
    parts["Parameters"] |= {"SocketApi": {"Type": "String", "Default": SOCKET_API}}
    parts["Resources"] = {name: each for name, each in template["Resources"].items() if each["Type"] in KINDS}
    with mock_aws():
        session = boto3.Session("testing", "testing", region_name="us-east-1")
        cloudformation, iam = session.client("cloudformation"), session.client("iam")
        stack_id = cloudformation.create_stack(
            StackName="tidemark",
            TemplateBody=json.dumps(parts).replace('{"Fn::GetAtt": ["PipeFunction", "Arn"]}', f'"{PIPE}"'),
            Parameters=[
                {"ParameterKey": name, "ParameterValue": value} for name, value in parameters.items()
            ],
            Capabilities=["CAPABILITY_IAM"],
        )["StackId"]
        resources = cloudformation.describe_stack_resources(StackName="tidemark")["StackResources"]
        # moto lists what a condition leaves out as well, without a name.
        made = [each for each in resources if "LogicalResourceId" in each]
        names = {each["LogicalResourceId"]: each["PhysicalResourceId"] for each in made}
        statements = {
            logical.removesuffix("Role"): statements_of(iam, name)
            for logical, name in names.items()
            if logical.endswith("Role")
        }
    return Roles(statements, names, stack_id)


def statements_of(iam: Any, role: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name in iam.list_role_policies(RoleName=role)["PolicyNames"]:
        document = iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]
        # moto's CloudFormation stores the text of a Python dictionary.
        found += ast.literal_eval(document)["Statement"]
    for statement in found:
        if isinstance(statement["Resource"], list):
            # moto leaves a null where AWS::NoValue stood.
            statement["Resource"] = [each for each in statement["Resource"] if each]
    return found
