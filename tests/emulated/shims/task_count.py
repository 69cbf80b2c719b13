"""CloudFormation makes a number of a parameter's text where a resource asks for one. The emulator hands the
number of an ECS service's tasks on as text."""

from __future__ import annotations

from typing import Any

from ministack.services import ecs

from tests.emulated.shims.names import replace


def install() -> None:
    create = ecs._create_service

    def create_counted(request: dict[str, Any]) -> Any:
        return create(request | {"desiredCount": int(request.get("desiredCount") or 0)})

    replace(ecs, "_create_service", create_counted)
