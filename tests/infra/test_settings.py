"""The environment is read strictly, by one rule for each kind of value: an invalid one is refused with the
name of its variable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tidemark.server.serve import ServerConfiguration
from tidemark.settings import InvalidSetting, Settings

READERS: dict[str, Callable[[Mapping[str, str]], bool]] = {
    "ALLOW_ANONYMOUS": lambda variables: Settings.from_environment(variables).authorization.allow_anonymous,
    "EDGE_ONLY": lambda variables: Settings.from_environment(variables).authorization.edge_only,
}
DEFAULTS = {"ALLOW_ANONYMOUS": False, "EDGE_ONLY": True}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    ("values", "meaning"),
    [
        (["true", "1", "yes", "on", "TRUE", "Yes", "oN", " true "], True),
        (["false", "0", "no", "off", "FALSE", "No", "oFf", " false "], False),
        ([""], None),
    ],
)
def test_words_for_true_and_false_in_any_case_are_known_and_empty_is_the_default(
    name: str, values: list[str], meaning: bool | None
) -> None:
    expected = DEFAULTS[name] if meaning is None else meaning
    assert READERS[name]({}) is DEFAULTS[name]
    assert [READERS[name]({name: value}) for value in values] == [expected] * len(values)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("value", ["maybe", "2", "y", "None", "yes please"])
def test_any_other_word_is_refused_with_the_variable_the_value_and_what_would_be_right(
    name: str, value: str
) -> None:
    with pytest.raises(InvalidSetting) as refused:
        READERS[name]({name: value})
    assert str(refused.value) == (f"{name} must be true or false (or 1, yes, on; 0, no, off), got {value!r}")


@pytest.mark.parametrize("value", ["-1", "901", "nan", "inf", "soon"])
@pytest.mark.parametrize("name", ["LONG_POLL_SECONDS", "SSE_SECONDS", "SSE_BUFFERED_SECONDS"])
def test_a_wait_outside_of_what_lambda_allows_is_refused(name: str, value: str) -> None:
    """A function ends after 900 s, so a longer wait could never be answered."""
    with pytest.raises(InvalidSetting, match=f"{name} must be a number of seconds between 0 and 900"):
        Settings.from_environment({name: value})


@pytest.mark.parametrize("value", ["debug", "TRACE", "10"])
def test_an_unknown_log_level_is_refused_and_the_known_ones_are_named(value: str) -> None:
    with pytest.raises(InvalidSetting, match="LOG_LEVEL must be DEBUG, INFO, WARNING or ERROR"):
        Settings.from_environment({"LOG_LEVEL": value})


def test_an_unset_or_empty_variable_means_its_default() -> None:
    expected = ServerConfiguration("127.0.0.1", 4437, Path(".data"))
    assert ServerConfiguration.from_environment({}) == expected
    assert ServerConfiguration.from_environment({"PORT": "", "VIA": "", "DATA_DIR": ""}) == expected


def test_each_variable_sets_its_option() -> None:
    environment = {"HOST": "::1", "PORT": "0", "DATA_DIR": "d", "VIA": "asgi", "JANITOR_SECONDS": "0"}
    assert ServerConfiguration.from_environment(environment) == ServerConfiguration("::1", 0, Path("d"), 0)


INVALID = {
    "PORT": ["http", "65536", "-1", "４４"],
    "VIA": ["ASGI", "sam"],
    "JANITOR_SECONDS": ["soon", "-1", "nan"],
}


@pytest.mark.parametrize(("name", "value"), [(name, each) for name in INVALID for each in INVALID[name]])
def test_an_invalid_value_is_refused_with_the_variables_name(name: str, value: str) -> None:
    with pytest.raises(InvalidSetting, match=f"{name} must be"):
        ServerConfiguration.from_environment({name: value})
