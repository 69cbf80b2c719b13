"""The environment is read strictly, by one rule for each kind of value: an invalid one is refused with the
name of its variable."""

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


#: A function ends after 900 s, so a longer wait could never be answered.
WAIT = (["-1", "901", "nan", "inf", "soon"], "a number of seconds between 0 and 900")
REFUSED = dict.fromkeys(("LONG_POLL_SECONDS", "SSE_SECONDS", "SSE_BUFFERED_SECONDS"), WAIT) | {
    "LOG_LEVEL": (["debug", "TRACE", "10"], "DEBUG, INFO, WARNING or ERROR"),
    "REQUESTS_PER_SECOND": (["-1", "many", "inf", "nan"], ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_that_cannot_be_is_refused_with_what_would_be_right(name: str) -> None:
    values, right = REFUSED[name]
    for value in values:
        with pytest.raises(InvalidSetting, match=f"{name} must be {right}"):
            Settings.from_environment({name: value})


def test_each_variable_sets_its_option_and_means_its_default_where_it_is_unset_or_empty() -> None:
    expected = ServerConfiguration("127.0.0.1", 4437, Path(".data"))
    assert ServerConfiguration.from_environment({}) == expected
    assert ServerConfiguration.from_environment({"PORT": "", "VIA": "", "DATA_DIR": ""}) == expected
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
