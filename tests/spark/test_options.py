"""What may be asked, and how each wrong way of asking is answered: all faults at once."""

import pytest

from tidemark.spark.options import InvalidOptions, Transport
from tidemark.spark.options.read import parse_read_options
from tidemark.spark.options.write import parse_write_options

TABLE = {"subscribe": "a"}
PATTERN = {"subscribePattern": "a.*"}
HTTP = TABLE | {"url": "http://h"}
STRANGERS = "names streams that are not subscribed:"
WRITE = {"stream": "a", "stagingDir": "/s", "url": "http://h"}


def read_faults(given: dict[str, str], *, streaming: bool = False) -> list[str]:
    with pytest.raises(InvalidOptions) as refused:
        parse_read_options(given, streaming=streaming, environment={})
    return refused.value.faults


#: Options of a batch read, and what is wrong with them.
BATCH = [
    ({}, "give either subscribe (or load('stream')) or subscribePattern, got neither"),
    ({"subscribe": "a", "subscribePattern": "b"}, "got subscribe and subscribePattern"),
    ({"subscribe": "a", "path": "b"}, "got subscribe and path"),
    ({"subscribe": "a,,b"}, "subscribe: an empty name"),
    ({"subscribe": "[1]"}, "subscribe: a JSON array must hold names"),
    ({"subscribe": '["a"'}, "subscribe: Expecting"),
    ({"subscribePattern": "("}, "subscribePattern: not a regular expression"),
    (TABLE | {"startingOffset": "earliest"}, "unknown option startingoffset (did you mean startingOffsets?)"),
    (TABLE | {"zzz": "1"}, "unknown option zzz (known: transport"),
    (TABLE | {"startingOffsets": "first"}, "startingOffsets: must be earliest, latest or a JSON object"),
    (TABLE | {"startingOffsets": "{}"}, "startingOffsets: must be"),
    (TABLE | {"startingOffsets": "[1]"}, "startingOffsets: must be"),
    (TABLE | {"startingOffsets": '{"a": -1}'}, "the offset of a must be text"),
    (TABLE | {"startingOffsets": '{"b": "-1"}'}, f"startingOffsets {STRANGERS} b"),
    (TABLE | {"endingOffsets": '{"c":"1","b":"2"}'}, f"endingOffsets {STRANGERS} b, c"),
    (PATTERN | {"startingOffsets": '{"ab": "-1", "ba": "-1"}'}, f"startingOffsets {STRANGERS} ba"),
    (TABLE | {"startingTimestamp": "yesterday"}, "startingTimestamp: must be milliseconds since 1970"),
    (TABLE | {"startingTimestamp": "2026-11-21T10:00"}, "got '2026-11-21T10:00', which has no zone"),
    (TABLE | {"startingTimestamp": "1", "startingOffsets": "latest"}, "give one of startingOffsets, st"),
    (TABLE | {"maxBytesPerTrigger": "10"}, "maxBytesPerTrigger is for a streaming query"),
    (TABLE | {"kafka.bootstrap.servers": "h:9092"}, "unknown option kafka.bootstrap.servers (url is the"),
    (TABLE | {"startingOffsets": "latest"}, "a batch read would be empty"),
    (TABLE | {"endingOffsets": "earliest"}, "with earliest the read would be empty"),
    (TABLE | {"bytesPerPartition": "0"}, "bytesPerPartition: must be a whole number of bytes above 0"),
    (TABLE | {"bytesPerPartition": "1.5"}, "bytesPerPartition: must be a whole number"),
    (TABLE | {"failOnDataLoss": "no"}, "failOnDataLoss: must be true or false"),
    (TABLE | {"transport": "kafka"}, "transport: must be dynamodb or http"),
    (TABLE | {"transport": "http"}, "transport=http needs url"),
    (TABLE | {"transport": "dynamodb", "url": "http://h"}, "url cannot go with transport=dynamodb"),
    (HTTP | {"table": "t", "blobBucket": "b"}, "table, blobBucket cannot go with transport=http"),
    (TABLE | {"url": "ftp://h"}, "url: must look like https://host"),
    (TABLE | {"url": "h"}, "url: must look like https://host"),
    (
        TABLE | {"url": "http://h/v1/stream"},
        "url: must be the server's root, http://h, without /v1/stream, got",
    ),
    (HTTP | {"columns": "value,valu"}, "columns: there is no 'valu'"),
    (HTTP | {"streamPath": "v1"}, "streamPath: must begin with /"),
    (TABLE | {"bucket": "No!"}, "bucket: must be 4 to 64"),
    (TABLE | {"retrySeconds": "-1"}, "retrySeconds: must be a whole number of seconds"),
]
STREAMING = [
    (TABLE | {"endingOffsets": "latest"}, "endingOffsets is for a batch read"),
    (TABLE | {"endingTimestamp": "1"}, "endingTimestamp is for a batch read"),
    (TABLE | {"maxOffsetsPerTrigger": "10000"}, "position here: maxBytesPerTrigger counts bytes"),
    (TABLE | {"minOffsetsPerTrigger": "10000"}, "the trigger sets the interval"),
    (TABLE | {"maxBytesPerTrigger": "many"}, "maxBytesPerTrigger: must be a whole number"),
]
#: Changes to a write; an option that is empty is left out.
WRITES = [
    ({"stream": ""}, "give either stream"),
    ({"streamColumn": "s"}, "give either stream"),
    ({"stream": "a/../b"}, "stream: 'a/../b' cannot be a stream's name: Stream name must not have"),
    ({"stream": "a/b", "bucket": "agents"}, "cannot be a stream's name: Stream id must not contain"),
    ({"stream": "streams", "bucket": "agents"}, "'streams' cannot be a stream's name"),
    ({"stagingDir": ""}, "stagingDir is missing"),
    ({"stagingDir": "hdfs://h/s"}, "stagingDir: must be a directory that the driver and all tasks share, or"),
    ({"batch": "7"}, "batch needs producerId"),
    ({"batch": "-1", "producerId": "a"}, "batch: must be the number that foreachBatch gives, got '-1'"),
    ({"createStreams": "true"}, "contentType is missing"),
    ({"contentType": "json"}, "contentType: Content type must look like"),
    ({"bytesPerAppend": "5000000"}, "bytesPerAppend: must be at most"),
    ({"producerId": "a b"}, "producerId: must be"),
    ({"producerId": "staged"}, "producerId: must not be 'staged'"),
    ({"subscribe": "a"}, "unknown option subscribe"),
]


@pytest.mark.parametrize(
    ("streaming", "given", "what"),
    [*((False, *case) for case in BATCH), *((True, *case) for case in STREAMING)],
)
def test_a_wrong_option_of_a_read_is_named(streaming: bool, given: dict[str, str], what: str) -> None:
    (fault,) = read_faults(given, streaming=streaming)
    assert what in fault


def test_a_token_that_cannot_be_sent_is_refused_and_not_shown() -> None:
    for token in ("secret\n", "secr\u00e9t", "two secrets"):
        (fault,) = read_faults({"url": "http://h", "subscribe": "a", "token": token})
        assert fault == "token: must be ASCII without spaces and line ends"


@pytest.mark.parametrize(("change", "what"), WRITES)
def test_a_wrong_option_of_a_write_is_named(change: dict[str, str], what: str) -> None:
    with pytest.raises(InvalidOptions) as refused:
        parse_write_options({name: text for name, text in (WRITE | change).items() if text}, environment={})
    assert any(what in fault for fault in refused.value.faults)


def test_all_wrong_options_are_named_in_one_error() -> None:
    assert len(read_faults({"url": "h", "table": "t", "startingOffsets": "x", "nope": "1"})) == 5


def test_option_names_are_case_insensitive() -> None:
    """Spark hands them on in lower case."""
    given = {
        "SUBSCRIBE": "a, b",
        "startingoffsets": '{"a":"-1"}',
        "MaxBytesPerTrigger": "7",
        "checkpointlocation": "x",
    }
    options = parse_read_options(given, streaming=True, environment={})
    assert (options.names, options.starting, options.limit_bytes) == (("a", "b"), {"a": "-1"}, 7)
    assert parse_read_options(TABLE, streaming=False, environment={}).starting == "earliest"
    latest = parse_read_options(TABLE | {"startingOffsets": "LATEST"}, streaming=True, environment={})
    assert latest.starting == "latest"


def test_times_are_milliseconds_or_rfc_3339() -> None:
    times = {
        "1700000000000": 1_700_000_000_000,
        "2023-11-14T22:13:20Z": 1_700_000_000_000,
        "2023-11-14T23:13:20.5+01:00": 1_700_000_000_500,
    }
    for text, ms in times.items():
        options = parse_read_options(TABLE | {"startingTimestamp": text}, streaming=True, environment={})
        assert options.starting == ms


def test_connection_options_default_to_the_environment() -> None:
    environment = {
        "TABLE_NAME": "t",
        "BUCKET_NAME": "b",
        "AWS_REGION": "r",
        "AWS_ENDPOINT_URL_DYNAMODB": "http://d",
    }
    given = TABLE | {"table": "mine"}
    origin = parse_read_options(given, streaming=False, environment=environment).connection
    assert (origin.table, origin.blob_bucket, origin.region) == ("mine", "b", "r")
    assert (origin.transport, origin.dynamodb_endpoint) == (Transport.DYNAMODB, "http://d")
    given = HTTP | {"bucket": "some-bucket", "token": "secret"}
    http = parse_read_options(given, streaming=False, environment={}).connection
    assert http.transport is Transport.HTTP
    assert http.stream_url("a b/ü") == "http://h/some-bucket/a%20b/%C3%BC"
    assert "secret" not in repr(http)
