"""What is said where a token or an address is wrong: which, and what would be right."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from tests.authorization.tokens import SECRET, token
from tests.spark.serving import ThreadedServer
from tests.spark.streams import Streams, plan_here, values_of
from tests.support import JSON
from tidemark.http.app import create_app
from tidemark.http.backend import threaded_backend
from tidemark.service.stores import connect
from tidemark.settings import AuthorizationSettings, Settings
from tidemark.spark.failures import Exit, explain_failure
from tidemark.spark.http_client import ForbiddenHttpFault
from tidemark.spark.options.read import parse_read_options
from tidemark.spark.readers import connect as reader_of
from tidemark.spark.writer.writers import plan_write

SCHEMA = StructType([StructField("value", BinaryType())])


@pytest.fixture
def guarded(streams: Streams) -> Iterator[dict[str, str]]:
    """How the stream is found at a server with keys, on the same table."""
    world = streams.world
    settings = Settings(
        table_name=world.table_name,
        bucket_name=world.bucket_name,
        authorization=AuthorizationSettings(secret=SECRET),
    )
    streams.fill(b"1", content_type=JSON)
    with ThreadedServer(create_app(threaded_backend(connect(settings), settings))) as server:
        yield {"url": server.url}


def refused(where: dict[str, str], name: str, scope: str | None = None) -> tuple[str, Exit]:
    given = where | {"subscribe": name} | ({} if scope is None else {"token": token(scope)})
    with pytest.raises(Exception, match="tidemark: ") as failed:
        plan_here(given)
    return explain_failure(failed.value)


def test_a_token_that_is_missing_or_refused_is_told_so(guarded: dict[str, str], streams: Streams) -> None:
    """The answer to HEAD has no body that could say it."""
    url = f"{guarded['url']}/v1/stream/{streams.name}"
    wants = "the server wants a token: give it as the option token or tokenFile, or in TIDEMARK_TOKEN"
    assert refused(guarded, streams.name) == (f"HEAD {url}: 401 {wants}", Exit.YOUR_RIGHTS)
    line, code = refused(guarded | {"token": token("read:*", exp=1)}, streams.name)
    assert code == Exit.YOUR_RIGHTS
    assert line.startswith(f"HEAD {url}: 401 the server refuses the token (")
    assert "expired" in line
    assert line.endswith("): give a valid one as the option token or tokenFile")


def test_a_token_comes_from_the_environment_or_from_a_file_that_is_read_again(
    guarded: dict[str, str], streams: Streams, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a query that goes on the token is renewed in the file."""
    place = tmp_path / "token"
    place.write_text(token("read:*", exp=1))
    options = parse_read_options(
        guarded | {"subscribe": streams.name, "tokenFile": str(place)}, streaming=True
    )
    reader = reader_of(options.connection)
    with pytest.raises(ForbiddenHttpFault):
        reader.heads([streams.name])[streams.name]
    place.write_text("\n")
    with pytest.raises(PermissionError, match="token is empty"):
        reader.heads([streams.name])
    place.write_text("\ufeff" + token("read:*") + "\n")
    assert reader.heads([streams.name])[streams.name].name == streams.name
    monkeypatch.setenv("TIDEMARK_TOKEN", token("read:*"))
    assert values_of(*plan_here(guarded | {"subscribe": streams.name})) == [b"1"]


def test_a_stream_beyond_the_token_is_named_with_its_url(guarded: dict[str, str], streams: Streams) -> None:
    """The server answers 404, as where there is none."""
    line, code = refused(guarded, streams.name, "read:other-bucket")
    url = f"{guarded['url']}/v1/stream/{streams.name}"
    asked = f"{url} answers 404: check the address and the token's rights"
    assert (line, code) == (f"no such stream in v1: {streams.name} ({asked})", Exit.YOUR_INPUT)
    given = guarded | {"subscribe": streams.name, "token": token("read:v1")}
    assert values_of(*plan_here(given)) == [b"1"]


def test_a_write_names_the_right_it_needs(guarded: dict[str, str], streams: Streams, tmp_path: Path) -> None:
    """And not that another driver runs, which is what a 403 with `Producer-Epoch` says."""
    given = {"stream": streams.name, "stagingDir": str(tmp_path), "producerId": "p"}
    for scope in ("read:*", "read:* write:*"):
        write = plan_write(guarded | given | {"token": token(scope)}, SCHEMA)
        staged = [write.stage([(streams.name, pa.array([b"2"]))])]
        if "write" in scope:
            write.publish(staged, 0)
            continue
        with pytest.raises(Exception, match="needs the right write") as failed:
            write.publish(staged, 0)
        line, code = explain_failure(failed.value)
        assert line.startswith(f"{streams.name}, before batch 0: ")
        assert ("newer batch" in line, code) == (False, Exit.YOUR_RIGHTS)
    assert streams.values() == [1, 2]
