"""The keys that sign webhooks (§6.5, §12.10).

The private half of a key is a SecureString in SSM's parameter store, or a file if Tidemark runs locally. The
public half is in the table. A new key is published for a while before it signs, because receivers and caches
keep the key set that they have fetched. Older keys stay published until an operator removes them, so that
their signatures can still be verified.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

import orjson
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typing_extensions import TypedDict  # pydantic takes typing's own from Python 3.12 on

from tidemark.aws.clients import Parameters
from tidemark.log.table import Table
from tidemark.service.stores import Stores
from tidemark.settings import Settings
from tidemark.subscriptions import records

#: Prefix of a place in SSM; a place without the prefix is a folder.
SSM: Final = "ssm:"
#: Milliseconds for which a key is published before it signs. Caches keep the key set for 5 minutes
#: (`protocol/caching.py`), and libraries of receivers for 10 (npm `jose`).
PUBLISHED_BEFORE_MS: Final = 15 * 60_000


class PrivateKeys(Protocol):
    """The store of the private halves, by key id."""

    def save(self, kid: str, pem: str, /) -> None: ...

    def load(self, kid: str, /) -> str: ...

    def remove(self, kid: str, /) -> None:
        """Remove the key; succeeds if there is none."""


@dataclass(frozen=True, slots=True)
class FolderKeys:
    """Files that only their owner can read. Raises OSError."""

    folder: Path

    def save(self, kid: str, pem: str) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.folder / f"{kid}.pem", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(pem)

    def load(self, kid: str) -> str:
        return (self.folder / f"{kid}.pem").read_text()

    def remove(self, kid: str) -> None:
        (self.folder / f"{kid}.pem").unlink(missing_ok=True)


def private_keys_at(place: str) -> PrivateKeys:
    """`ssm:/a/prefix/` or a folder."""
    if place.startswith(SSM):
        return Parameters(place.removeprefix(SSM))
    return FolderKeys(Path(place))


class SigningKeys:
    """The signing keys. Every process may have its own instance: the shared state is in the table."""

    def __init__(self, table: Table, private_keys: PrivateKeys) -> None:
        self._table = table
        self._private_keys = private_keys
        self._loaded: dict[str, Ed25519PrivateKey] = {}

    def published(self) -> Sequence[records.SigningKey]:
        """The published keys, the oldest first."""
        items, _ = self._table.query(records.SIGNING_KEYS_PK)
        return [records.decode_signing_key(item) for item in items]

    def active(self, now_ms: int) -> records.SigningKey:
        """The key that signs. The first call creates the first key."""
        published = self.published()
        return choose_signing_key(published, now_ms) if published else self.rotate(now_ms)

    def rotate(self, now_ms: int) -> records.SigningKey:
        """Create and publish a key, which signs once it has been published for PUBLISHED_BEFORE_MS."""
        private = Ed25519PrivateKey.generate()
        key = records.SigningKey(*_describe(private), created_ms=now_ms)
        pem = private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
        # Save the private half first, so that every process that sees the public half can sign.
        self._private_keys.save(key.kid, pem)
        self._table.put(records.encode_signing_key(key))
        return key

    def remove(self, key: records.SigningKey) -> None:
        """Withdraw a key: its signatures are no longer valid. Another key replaces a signing key at once."""
        self._table.delete(records.signing_key_key(key))
        self._private_keys.remove(key.kid)

    def sign(self, body: bytes, now_ms: int) -> str:
        """The value of `Webhook-Signature` for this body (§7.1)."""
        kid, seconds = self.active(now_ms).kid, now_ms // 1000
        if kid not in self._loaded:
            private = serialization.load_pem_private_key(self._private_keys.load(kid).encode(), None)
            assert isinstance(private, Ed25519PrivateKey), "this module makes no other"
            self._loaded[kid] = private
        signature = self._loaded[kid].sign(b"%d.%s" % (seconds, body))
        return f"t={seconds},kid={kid},ed25519={_base64url(signature)}"


def choose_signing_key(published: Sequence[records.SigningKey], now_ms: int) -> records.SigningKey:
    """The newest key that has been published for PUBLISHED_BEFORE_MS, or else the oldest key. `published` has
    the oldest first."""
    known = [key for key in published if key.created_ms + PUBLISHED_BEFORE_MS <= now_ms]
    return known[-1] if known else published[0]


def connect_signing_keys(settings: Settings, stores: Stores) -> SigningKeys | None:
    if not settings.webhook_keys:
        return None
    return SigningKeys(stores.table, private_keys_at(settings.webhook_keys))


class PublicKeyDescription(TypedDict):
    kty: Literal["OKP"]
    crv: Literal["Ed25519"]
    x: str
    kid: str
    use: Literal["sig"]
    alg: Literal["EdDSA"]


class KeySet(TypedDict):
    """A JSON Web Key Set (RFC 7517, RFC 8037)."""

    keys: list[PublicKeyDescription]


def render_jwks(keys: Sequence[records.SigningKey]) -> KeySet:
    return {
        "keys": [
            {"crv": "Ed25519", "kty": "OKP", "x": key.public, "kid": key.kid, "use": "sig", "alg": "EdDSA"}
            for key in keys
        ]
    }


def _describe(private: Ed25519PrivateKey) -> tuple[str, str]:
    """The key's id and its public half. The id is the key's thumbprint (RFC 7638: its members in order)."""
    public = _base64url(
        private.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    )
    thumbprint = hashlib.sha256(orjson.dumps({"crv": "Ed25519", "kty": "OKP", "x": public})).digest()
    return f"ds_{_base64url(thumbprint)}", public


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
