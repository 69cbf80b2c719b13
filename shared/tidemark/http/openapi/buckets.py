"""The bucket surface in the OpenAPI document (extensions §1 to §3)."""

from __future__ import annotations

from typing import Final

from tidemark.http.openapi.parts import AS_STORED, Part, answer, fault, faults, headless, parameters

_JSON: Final[Part] = {"application/json": {"schema": {"type": "object"}}}
_BODY: Final[Part] = {
    "required": False,
    "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}},
}
_SNAPSHOT: Final = ("Stream-Snapshot-Offset", "Stream-Next-Offset", "Stream-Up-To-Date")


def _operation(
    operation_id: str, summary: str, right: str, *names: str, responses: dict[str, Part], **more: Part
) -> Part:
    return {
        "operationId": operation_id,
        "summary": summary,
        "parameters": parameters(*names),
        "responses": responses,
        "security": [{"bearer": [right]}, {}],
    } | more


def _readable(name: str, part: Part) -> dict[str, Part]:
    """GET, and HEAD beside it, which has no body."""
    head = part | {
        "operationId": f"{name}Metadata",
        "responses": {status: headless(each) for status, each in part["responses"].items()},
    }
    return {"get": part | {"operationId": name}, "head": head}


_BUCKET: Final[dict[str, Part]] = {
    **_readable(
        "describeBucket",
        _operation(
            "",
            "A bucket (extensions §1.3)",
            "read",
            responses={"200": answer("It.", content=_JSON), **faults()},
        ),
    ),
    "put": _operation(
        "createBucket",
        "Create a bucket (extensions §1.2)",
        "manage",
        responses={
            "201": answer("It was made.", "Location", content=_JSON),
            **faults(_409=fault("It is there.")),
        },
    ),
    "delete": _operation(
        "deleteBucket",
        "Delete an empty bucket (extensions §1.5)",
        "manage",
        responses={"204": answer("It is gone."), **faults(_409=fault("It is not empty."))},
    ),
}
_LISTING: Final = _readable(
    "listStreams",
    _operation(
        "",
        "The streams of a bucket, in the order of their names' bytes (extensions §1.4)",
        "read",
        "prefix",
        "after",
        "limit",
        responses={"200": answer("A page of them.", content=_JSON), **faults()},
    ),
)
_LATEST: Final = _readable(
    "latestSnapshot",
    _operation(
        "",
        "Where the latest snapshot is (extensions §2.2)",
        "read",
        responses={"307": answer("There.", "Location", "Stream-Snapshot-Offset"), **faults()},
    ),
)
_ONE: Final[dict[str, Part]] = {
    **_readable(
        "readSnapshot",
        _operation(
            "",
            "A snapshot (extensions §2.3)",
            "read",
            responses={
                "200": answer("Its bytes.", *_SNAPSHOT, content=AS_STORED),
                "307": answer("Where its bytes are, for a while.", "Location", *_SNAPSHOT),
                **faults(),
            },
        ),
    ),
    "put": _operation(
        "publishSnapshot",
        "Publish a snapshot; what lies before it can be read no more (extensions §2.1)",
        "manage",
        "Snapshot-Upload",
        requestBody=_BODY,
        responses={
            "204": answer("It is the latest.", "Stream-Snapshot-Offset"),
            **faults(
                _409=fault("Beyond the tail, or the upload is not there.", "Stream-Next-Offset"),
                _413=fault("Too large for one request."),
            ),
        },
    ),
    "delete": _operation(
        "deleteSnapshot",
        "Delete a superseded snapshot (extensions §2.4)",
        "manage",
        responses={"204": answer("It is gone."), **faults(_409=fault("It is the latest."))},
    ),
}
_UPLOAD: Final[dict[str, Part]] = {
    "post": _operation(
        "prepareUpload",
        "Where to put a snapshot that is too large for a request",
        "manage",
        responses={
            "201": answer("There, and for how long.", content=_JSON),
            **faults(_409=fault("Beyond the tail.", "Stream-Next-Offset")),
        },
    )
}
_BOOTSTRAP: Final = _readable(
    "bootstrap",
    _operation(
        "",
        "The latest snapshot and the messages since, in one answer (extensions §3)",
        "read",
        responses={
            "200": answer("Them, as parts.", *_SNAPSHOT, "Stream-Closed", content=AS_STORED),
            "307": answer("Where they are, for a while.", "Location", *_SNAPSHOT, "Stream-Closed"),
            **faults(),
        },
    ),
)


def bucket_paths(stream: dict[str, Part]) -> dict[str, Part]:
    """`stream` are the operations of a stream, the same on both surfaces."""
    in_bucket = {
        method: part | {"operationId": f"{part['operationId']}InBucket"} for method, part in stream.items()
    }
    return {
        path: {"parameters": parameters(*names), **operations}
        for path, names, operations in (
            ("/{bucket}", ["bucket"], _BUCKET),
            ("/{bucket}/streams", ["bucket"], _LISTING),
            ("/{bucket}/{stream}", ["bucket", "stream"], in_bucket),
            ("/{bucket}/{stream}/snapshot", ["bucket", "stream"], _LATEST),
            ("/{bucket}/{stream}/snapshot/{at}", ["bucket", "stream", "at"], _ONE),
            ("/{bucket}/{stream}/snapshot/{at}/upload", ["bucket", "stream", "at"], _UPLOAD),
            ("/{bucket}/{stream}/bootstrap", ["bucket", "stream"], _BOOTSTRAP),
        )
    }
