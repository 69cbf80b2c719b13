"""AWS refuses or keeps more than the emulator's CloudFormation does: reservations of functions, protected
tables, ceilings of tables, boundaries of roles, and stacks whose creation was rolled back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ministack.services import dynamodb, iam, lambda_svc
from ministack.services.cloudformation import _stacks, handlers, provisioners
from ministack.services.cloudformation.helpers import _error, _p

#: Concurrent executions that no function may reserve.
UNRESERVABLE = 100
Made = tuple[str, dict[str, Any]]


def install() -> None:
    after("AWS::Lambda::Function", reserve)
    after("AWS::DynamoDB::Table", set_ceiling)
    after("AWS::IAM::Role", set_boundary)
    tables = provisioners._RESOURCE_HANDLERS["AWS::DynamoDB::Table"]
    tables["delete"] = unless_protected(tables["delete"])
    for action in ("CreateStack", "CreateChangeSet"):
        handlers._ACTION_HANDLERS[action] = unless_rolled_back(handlers._ACTION_HANDLERS[action])


def after(kind: str, apply: Callable[[str, Any], None]) -> None:
    """Calls `apply` with each resource of the kind that is created or updated, and its properties."""
    known = provisioners._RESOURCE_HANDLERS[kind]
    create, update = known["create"], known["update"]

    def create_and_apply(logical_id: str, properties: Any, stack_name: str) -> Made:
        made: Made = create(logical_id, properties, stack_name)
        apply(made[0], properties)
        return made

    def update_and_apply(name: str, old: Any, new: Any, stack_name: str, logical_id: str) -> Made:
        made: Made = update(name, old, new, stack_name, logical_id)
        apply(made[0], new)
        return made

    known.update(create=create_and_apply, update=update_and_apply)


def reserve(name: str, properties: Any) -> None:
    """Raises ValueError if too little is left to the other functions."""
    wanted = properties.get("ReservedConcurrentExecutions")
    functions = lambda_svc._functions
    functions[name]["concurrency"] = None if wanted is None else int(wanted)
    reserved = sum(each.get("concurrency") or 0 for each in map(functions.get, list(functions.keys())))
    if wanted is not None and lambda_svc._ACCOUNT_CONCURRENCY_CAP - reserved < UNRESERVABLE:
        raise ValueError(
            "Specified ReservedConcurrentExecutions for function decreases account's "
            f"UnreservedConcurrentExecution below its minimum value of [{UNRESERVABLE}]."
        )


def set_ceiling(name: str, properties: Any) -> None:
    """A ceiling that the template does not name stays. Raises ValueError for a value below the
    schema's least, which is 1."""
    ceiling = properties.get("OnDemandThroughput")
    if ceiling is None:
        return
    if any(int(units) < 1 for units in ceiling.values()):
        raise ValueError(f"Properties validation failed: #/OnDemandThroughput: {ceiling} is less than 1")
    dynamodb._update_table({"TableName": name, "OnDemandThroughput": ceiling})


def set_boundary(name: str, properties: Any) -> None:
    iam._roles[name]["PermissionsBoundary"] = properties.get("PermissionsBoundary")


def unless_protected(delete: Callable[[str, Any], None]) -> Callable[[str, Any], None]:
    def delete_unprotected(name: str, properties: Any) -> None:
        if (dynamodb._tables.get(name) or {}).get("DeletionProtectionEnabled"):
            raise ValueError(f"Resource cannot be deleted: the table {name} is protected against deletion")
        delete(name, properties)

    return delete_unprotected


def unless_rolled_back(act: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Nothing but DeleteStack is for such a stack."""

    def act_unless_rolled_back(parameters: Any) -> Any:
        stack = _stacks.get(_p(parameters, "StackName")) or {}
        status = stack.get("StackStatus")
        if status in {"ROLLBACK_COMPLETE", "ROLLBACK_FAILED"}:
            reason = f"Stack:{stack['StackId']} is in {status} state and can not be updated."
            return _error("ValidationError", reason)
        return act(parameters)

    return act_unless_rolled_back
