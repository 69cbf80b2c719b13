"""CodeDeploy, and alarms over several metrics: CloudFormation there makes neither. Here they are names and
nothing else: an alias goes to its new version at once, whatever sounds."""

from __future__ import annotations

from typing import Any

from ministack.services.cloudformation import provisioners

from tests.emulated.shims.names import replace


def install() -> None:
    for resource in ("AWS::CodeDeploy::Application", "AWS::CodeDeploy::DeploymentGroup"):
        if resource in provisioners._RESOURCE_HANDLERS:
            raise SystemExit(f"this ministack makes {resource}: remove the shim")
        provisioners._RESOURCE_HANDLERS[resource] = {"create": create, "delete": lambda *_: None}
    record = provisioners._cw_metric_alarm_record

    def record_any(name: str, properties: Any) -> Any:
        one = {"Namespace": "several", "MetricName": "several", **properties}
        return record(name, {key: one[key] for key in one.keys() - {"Metrics"}})

    replace(provisioners, "_cw_metric_alarm_record", record_any)


def create(logical_id: str, _properties: Any, stack_name: str) -> tuple[str, dict[str, Any]]:
    return f"{stack_name}-{logical_id}", {}
