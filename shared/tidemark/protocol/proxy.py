"""The rules of the durable proxy: allowed upstream URLs, forwarded headers, and signed URLs.

Section numbers refer to the Durable Streams Proxy Protocol, an extension of the protocol.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from re import Pattern
from typing import Final
from urllib.parse import unquote

from tidemark.outbound.request import PORTS, Url, split_url
from tidemark.protocol.errors import ProxyError

UPSTREAM_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
AUTHORIZATION: Final = "Authorization"
_MAX_URL: Final = 8192
_MOST_ESCAPES: Final = 4
_SHORT: Final = 7
#: Names, and addresses in the form of a URL. The address of a name is checked when it is resolved.
_HOST: Final = re.compile("[a-z0-9_.-]+|[0-9a-f:.]+", re.ASCII)


def upstream_not_allowed(why: str) -> ProxyError:
    return ProxyError(403, "UPSTREAM_NOT_ALLOWED", why)


def parse_upstream_url(text: str) -> Url:
    """Parse an upstream URL, and refuse every form that another parser might read as another host or path:
    users, escapes in the host, backslashes, non-ASCII characters, and dot segments in any encoding or form
    (some servers read `..;x` as `..`). Raises ProxyError."""
    if len(text) > _MAX_URL or not re.fullmatch(r"[!-~]+", text) or "\\" in text or "#" in text:
        raise upstream_not_allowed(
            "Upstream-URL must be ASCII without spaces, backslashes and fragment, at most 8 KiB"
        )
    try:
        url, authority = split_url(text)
    except ValueError:
        raise upstream_not_allowed("Upstream-URL is not a valid URL") from None
    if url.scheme not in PORTS or not authority:
        raise upstream_not_allowed("Upstream-URL must be absolute, and begin with https:// or http://")
    is_plain = bool(_HOST.fullmatch(url.host)) and (":" in url.host or "" not in url.host.split("."))
    if not is_plain or url.port == 0 or re.search("[@%]|:$", authority):
        raise upstream_not_allowed(
            "Upstream-URL must have a plain host: no user, no escapes; xn-- beyond ASCII"
        )
    path = _decoded(url.target.partition("?")[0])
    segments = [each.partition(";")[0].strip() for each in re.split(r"[/\\]", path)]
    if not {".", ".."}.isdisjoint(segments):
        raise upstream_not_allowed("Upstream-URL must have no dot segments in its path")
    return url


def _decoded(path: str) -> str:
    """Decode the path repeatedly, as a chain of servers might. Raises ProxyError."""
    for _ in range(_MOST_ESCAPES):
        if (once := unquote(path)) == path and path.isprintable():
            return path
        path = once
    raise upstream_not_allowed(
        "Upstream-URL must have a path without control characters and repeated escapes"
    )


@dataclass(frozen=True, slots=True)
class AllowEntry:
    """One entry of the allow-list. `secret` locates the upstream's key, which is sent in `header`."""

    name: str
    pattern: Pattern[str]
    #: Whether the entry names host and port, which may then be in a private network.
    is_exact: bool
    header: str = AUTHORIZATION
    secret: str = field(default="", repr=False)
    #: Seconds for which a part of an answer waits for the next part; None: the server's own.
    linger: float | None = None

    def allows(self, url: Url) -> bool:
        path = url.target.partition("?")[0]
        return bool(self.pattern.fullmatch(f"{url.scheme}://{url.host}:{url.port}{path}"))


_PATTERN: Final = re.compile(
    r"(?:(https?)://)?(\[[^\]/]+\]|[^/:\[\]]+)(?::([0-9]+|\*))?(/.*)?", re.IGNORECASE
)
_EXPECTED: Final = (
    "[scheme://]host[:port][/path] of a URL (no user, no query, a port up to 65535, in the path no * but at "
    "its end), and name=, key=, header=, linger= once each"
)
#: The options of an entry, and the description of their values in errors.
_OPTION: Final = re.compile(
    r"name=.+|key=(env|file|ssm):.+|header=[\w!#$%&'*+.^`|~-]+|linger=[0-5](\.[0-9]+)?", re.ASCII
)
_VALUES: Final = {
    "name": "a name after name=",
    "key": "env:NAME, file:/path or ssm:/name after key=",
    "header": "the name of a header after header=",
    "linger": "seconds below 6 after linger=",
}


def parse_allowed(text: str) -> tuple[AllowEntry, ...]:
    """Parse the entries, separated by commas: each is a pattern with options (`_VALUES`). A pattern is
    `[scheme://]host[:port][/path]`. A leading `*.` matches all subdomains, another `*` in the host any text,
    and `/*` or `/**` at the end everything below. A missing part matches anything, but an entry with a key
    needs a scheme, whose default port then applies.

    Raises ValueError, also for an entry that no URL can match.
    """
    entries = (words for entry in text.split(",") if (words := entry.split()))
    return tuple(_parse_entry(*words) for words in entries)


def _parse_entry(pattern: str, *options: str) -> AllowEntry:
    given, found = dict(option.partition("=")[::2] for option in options), _PATTERN.fullmatch(pattern)
    if found is None or len(given) < len(options) or not given.keys() <= _VALUES.keys():
        raise _unexpected(_EXPECTED, pattern, *options)
    for option in options:
        if not _OPTION.fullmatch(option):
            raise _unexpected(_VALUES[option.partition("=")[0]], pattern, *options)
    scheme, host, port, path = found.groups("")
    if "key" in given:
        if not scheme:
            raise _unexpected("https:// before the host of an entry with a key", pattern, *options)
        port = port or str(PORTS[scheme.lower()])
    text, below = host.strip("[]").lower(), re.sub(r"/\*\*?$", "", path)
    entry = AllowEntry(
        given.get("name", text),
        _matching(scheme.lower(), text, port, below, is_all_below=below != path or not path),
        is_exact="*" not in text and found[3] is not None,
        header=given.get("header", AUTHORIZATION),
        secret=given.get("key", ""),
        linger=float(given["linger"]) if "linger" in given else None,
    )
    example = f"{scheme or 'https'}://{host.replace('*', 'x')}:{port.replace('*', '') or 1}{below}"
    with suppress(ProxyError):
        if "*" not in below and entry.allows(parse_upstream_url(example)):
            return entry
    raise _unexpected(_EXPECTED, pattern, *options)


def _matching(scheme: str, host: str, port: str, path: str, *, is_all_below: bool) -> Pattern[str]:
    name = re.escape(host).replace(r"\*", "[^/:]*")
    if host.startswith("*."):
        name = r"[^/:]+\." + re.escape(host[2:])
    ports = r"\d+" if port in {"", "*"} else str(int(port))
    return re.compile(
        f"{scheme or 'https?'}://{name}:{ports}{re.escape(path)}{'(/.*)?' if is_all_below else ''}"
    )


def _unexpected(right: str, *entry: str) -> ValueError:
    """Return the error without the text after `key=`, which may be the key itself."""
    return ValueError(f"PROXY_ALLOW: {right} expected, got {re.sub('key=[^ ]+', 'key=…', ' '.join(entry))!r}")


def allowing_entry(entries: Iterable[AllowEntry], url: Url) -> AllowEntry:
    """Return the first entry that allows the URL. Raises ProxyError."""
    found = next((entry for entry in entries if entry.allows(url)), None)
    if found is None:
        raise upstream_not_allowed("Upstream-URL is not on the allow-list (PROXY_ALLOW)")
    return found


#: Headers of one connection (RFC 9110 §7.6.1); headers written anew for the upstream (§5.2); and headers of
#: browsers about a page of this server.
_NOT_FORWARDED: Final = re.compile(
    "connection|keep-alive|te|trailers?|transfer-encoding|upgrade|http2-settings|expect|host|via|forwarded"
    "|authorization|content-length|accept-encoding|cookie|origin|referer"
    # Headers of proxies in front of this server: some are secrets.
    "|(upstream-|proxy-|x-forwarded-|x-tidemark-|x-amz|cloudfront-|sec-).*"
)


#: Headers of an upstream's error for the client: whether and when to retry, and request ids.
_HANDED_ON: Final = re.compile(
    "retry-after(-ms)?|(x-)?request-id|x-should-retry|(x|anthropic)-ratelimit-[a-z0-9-]{1,64}"
)
_SAFE: Final = re.compile(rb"[!-~](?:[ -~]{0,254}[!-~])?")
_MOST_HANDED_ON: Final = 32
#: The least length of a hidden prefix of a key: shorter ones may occur in any text.
_BEGINNING: Final = 4


def forwarded(headers: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the client's headers in the form for the upstream (§5.1)."""
    sent = [(name.lower(), value) for name, value in headers]
    listed = {
        each.strip().lower() for name, value in sent if name == "connection" for each in value.split(",")
    }
    for name, value in sent:
        if name not in listed and not _NOT_FORWARDED.fullmatch(name):
            yield name, value
        elif name == "upstream-authorization":
            yield "authorization", value
    yield "accept-encoding", "identity"


def with_key(headers: Sequence[tuple[str, str]], entry: AllowEntry, key: str) -> list[tuple[str, str]]:
    """Return the headers with the entry's own key, unless the client sent one."""
    name = entry.header.lower()
    if not key or any(sent in {name, "authorization"} for sent, _ in headers):
        return list(headers)
    return [*headers, (name, f"Bearer {key}" if name == "authorization" else key)]


def keys_in(headers: Iterable[tuple[str, str]], entry: AllowEntry) -> Iterator[str]:
    """Yield the headers' secrets, which only the upstream may see. A value of a few letters is no key."""
    for name, value in headers:
        if name in {"authorization", entry.header.lower()} and len(key := value.rpartition(" ")[2]) > _SHORT:
            yield key


def without_keys(body: bytes, keys: Sequence[bytes]) -> bytes:
    """Return the body of an error with its keys hidden, also a key that is cut at the body's end."""
    longest_first = sorted(keys, key=len, reverse=True)
    ends = (key[:size] for key in longest_first for size in range(len(key), _BEGINNING - 1, -1))
    if end := max(filter(body.endswith, ends), key=len, default=b""):
        body = body[: -len(end)] + b"***"
    for key in longest_first:
        body = body.replace(key, b"***")
    return body


def handed_on(
    status: int, headers: Iterable[tuple[bytes, bytes]], keys: Sequence[bytes] = ()
) -> dict[str, str]:
    """Return the headers of an upstream's error for the client, in lower case. The client sees the status
    502, after which the SDKs of OpenAI and Anthropic retry unless `x-should-retry` forbids that."""
    found: dict[str, str] = {}
    for name, value in ((name.decode("latin-1").lower(), value) for name, value in headers):
        is_safe = _SAFE.fullmatch(value) and not any(key in value for key in keys)
        if _HANDED_ON.fullmatch(name) and is_safe and len(found) < _MOST_HANDED_ON:
            found.setdefault(name, value.decode())
    if 400 <= status < 500 and status not in {408, 409, 429}:
        found.setdefault("x-should-retry", "false")
    return found


def sign(key: bytes, call_id: str, expires: str) -> str:
    """Return the signature of a URL (§7.2)."""
    mac = hmac.digest(key, f"proxy url {call_id} {expires}".encode(), "sha256")
    return base64.urlsafe_b64encode(mac).rstrip(b"=").decode()


def check_signature(
    keys: Iterable[bytes], call_id: str, expires: str | None, signature: str | None, now_seconds: float
) -> None:
    """Check the signature and expiry of a URL. Raises ProxyError (§11.2)."""
    if not expires or not signature:
        raise ProxyError(
            401, "MISSING_SIGNATURE", "A signed URL is needed: expires and signature are missing"
        )
    valid = [sign(key, call_id, expires).encode() for key in keys]
    if not any(hmac.compare_digest(each, signature.encode()) for each in valid):
        raise ProxyError(401, "SIGNATURE_INVALID", "The signature is not one of this server for this stream")
    if not expires.isdecimal() or int(expires) <= now_seconds:
        raise ProxyError(401, "SIGNATURE_EXPIRED", "The signed URL has expired")
