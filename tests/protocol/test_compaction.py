"""The headers that say how a stream is compacted."""

import pytest

from tidemark.protocol.compaction import COMPACTION_HEADERS, Compaction, decide_compaction, parse_compaction
from tidemark.protocol.errors import Malformed
from tidemark.protocol.messages import parse_content_type

MODE = "last-by-key"


@pytest.mark.parametrize(
    ("values", "compaction"),
    [
        ((None, None, None, None), None),
        ((MODE, None, None, None), Compaction(3600, 86400, None)),
        ((MODE, "0", "0", "/id"), Compaction(0, 0, "/id")),
        ((MODE, "60", None, "/"), Compaction(60, 86400, "/")),
        ((MODE, None, "9007199254740991", "/a~1b/~0c/0//-"), Compaction(3600, 2**53 - 1, "/a~1b/~0c/0//-")),
        ((MODE, None, None, "/" + "x" * 255), Compaction(key="/" + "x" * 255)),
    ],
)
def test_the_headers_say_how_a_stream_is_compacted(
    values: tuple[str | None, ...], compaction: Compaction | None
) -> None:
    assert parse_compaction(*values) == compaction
    if compaction is not None:
        sent = {name: str(value) for name, value in compaction.named(*COMPACTION_HEADERS).items()}
        assert parse_compaction(*map(sent.get, COMPACTION_HEADERS)) == compaction


NO_MODES = ["", "Last-By-Key", "true", "last-by-key,last-by-key", "last-by-key ", "x" * 1000]
LONG = "/" + "x" * 256
NO_POINTERS = ["", "id", "id/", "#/id", "/~", "/a~2", "/a b", "/a,b", "/id, /id", "/é", "/a\n", LONG]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        *(((mode, None, None, None), "Stream-Compact must be last-by-key") for mode in NO_MODES),
        ((MODE, "-1", None, None), "Stream-Compact-After must be an integer between 0"),
        ((MODE, None, "1.5", None), "Stream-Compact-Tombstones must be an integer between 0"),
        ((None, "60", None, None), "Stream-Compact-After needs Stream-Compact: last-by-key"),
        ((None, None, "60", None), "Stream-Compact-Tombstones needs Stream-Compact: last-by-key"),
        ((None, None, None, "/id"), "Stream-Compact-Key needs Stream-Compact: last-by-key"),
        *(((MODE, None, None, key), "Stream-Compact-Key must be a JSON pointer") for key in NO_POINTERS),
    ],
)
def test_any_other_value_is_refused_with_what_is_right(values: tuple[str | None, ...], says: str) -> None:
    with pytest.raises(Malformed) as refused:
        parse_compaction(*values)
    assert refused.value.message.startswith(says)
    assert len(refused.value.message) < 250


OWN, DEFAULT = Compaction(key="/id"), Compaction()


@pytest.mark.parametrize(
    ("content_type", "requested", "default", "decided"),
    [
        ("application/json", None, None, None),
        ("application/json; charset=utf-8", OWN, None, OWN),
        ("application/json", None, DEFAULT, DEFAULT),
        ("application/json", OWN, DEFAULT, OWN),
        ("text/plain", None, DEFAULT, None),
        ("application/state+json", None, DEFAULT, None),
    ],
)
def test_a_stream_of_json_is_compacted_as_it_names_or_else_as_its_bucket(
    content_type: str, requested: Compaction | None, default: Compaction | None, decided: Compaction | None
) -> None:
    assert decide_compaction(parse_content_type(content_type), requested, default) == decided


def test_what_is_not_json_has_no_keys() -> None:
    with pytest.raises(Malformed, match=r"application/json.* this one is text/plain"):
        decide_compaction(parse_content_type("text/plain; charset=utf-8"), OWN, None)
