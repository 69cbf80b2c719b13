"""The environment is read strictly: an invalid value is refused with the name of its variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemark.server.serve import LocalConfiguration
from tidemark.settings import InvalidSetting


def test_an_unset_or_empty_variable_means_its_default() -> None:
    expected = LocalConfiguration("127.0.0.1", 4437, Path(".data"), "asgi")
    assert LocalConfiguration.from_environment({}) == expected
    assert LocalConfiguration.from_environment({"PORT": "", "VIA": "", "DATA_DIR": ""}) == expected


def test_each_variable_sets_its_option() -> None:
    environment = {"HOST": "::1", "PORT": "0", "DATA_DIR": "d", "VIA": "lambda", "JANITOR_SECONDS": "0"}
    expected = LocalConfiguration("::1", 0, Path("d"), "lambda", 0, edge=False)
    assert LocalConfiguration.from_environment(environment | {"EDGE": "false"}) == expected


INVALID = {
    "PORT": ["http", "65536", "-1", "４４"],
    "VIA": ["ASGI", "sam"],
    "EDGE": ["maybe", "2"],
    "JANITOR_SECONDS": ["soon", "-1", "nan"],
}


@pytest.mark.parametrize(("name", "value"), [(name, each) for name in INVALID for each in INVALID[name]])
def test_an_invalid_value_is_refused_with_the_variables_name(name: str, value: str) -> None:
    with pytest.raises(InvalidSetting, match=f"{name} must be"):
        LocalConfiguration.from_environment({name: value})
