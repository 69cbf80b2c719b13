"""Whether a reply of AWS is whole.

`http.client` takes the end of a connection for the end of the headers: a reply that is cut there
is a status and nothing else. So no reply counts before something in it proves that nothing is
missing. Our own client (`aws/http.py`) and boto3's clients
(`aws/clients.py`) ask here.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Mapping
from typing import Final

#: The checksum of a whole object. (That of an object made of parts covers the parts' checksums: "…-3".)
_CRC32: Final = "x-amz-checksum-crc32"


def missing(headers: Mapping[str, str], body: bytes) -> str | None:
    """Describes the missing part of a reply; None if it is whole. `headers` are found by names in lower case;
    `body` is as it came, not decompressed.

    A chunked body ends with a chunk of no bytes, which its reader has required already. The length alone does
    not detect a body that was replaced by another: DynamoDB also sends the body's checksum.
    """
    length = headers.get("content-length")
    if length is None:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return "the reply does not say how long it is"
    elif length != str(len(body)):
        return f"the reply has {len(body)} bytes and promises {length}"
    checksum = headers.get("x-amz-crc32")
    if checksum is not None and checksum != str(zlib.crc32(body)):
        return "the reply's bytes do not fit their checksum"
    return None


def missing_of_object(method: str, headers: Mapping[str, str], body: bytes) -> str | None:
    """The same of S3's 200 to a GET or a PUT of an object: it always names the entity tag, which an
    error in the place of an object does not have."""
    if not has_tag(headers):
        return "the reply names no entity tag"
    if method == "PUT":
        return "the reply to a PUT has a body" if body else None
    checksum = headers.get(_CRC32)
    if checksum is not None and "-" not in checksum and checksum != crc32_text(body):
        return "the object's bytes do not fit their checksum"
    return None


def has_tag(headers: Mapping[str, str]) -> bool:
    """Whether there is an entity tag, and all of it."""
    tag = headers.get("etag", "")
    return len(tag) > 1 and tag[0] == tag[-1] == '"'


def crc32_header(body: bytes) -> dict[str, str]:
    """The checksum sent with an object: S3 checks and stores it, and returns it with each read of the
    object."""
    return {_CRC32: crc32_text(body)}


def crc32_text(body: bytes) -> str:
    """The CRC32 as S3 writes it."""
    return b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
