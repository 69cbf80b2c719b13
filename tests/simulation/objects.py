"""A bucket of S3 in memory, behind the same interface as `tidemark.blobs.BlobStore`."""

from collections.abc import Callable

from tidemark.aws.s3 import Objects
from tidemark.blobs import Composition, Stored, objects_of

_MISSING = b"<Error><Code>NoSuchKey</Code></Error>"


class SimulatedBucket:
    """What one bucket holds; `send` is the seam of `tidemark.aws.s3.Objects`."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def send(self, operation: str, key: str, body: bytes) -> tuple[int, bytes]:
        if operation == "PutObject":
            self.objects[key] = body
            return 200, b""
        if operation == "GetRange" and key in self.objects:
            first, last = map(int, body.removeprefix(b"bytes=").split(b"-"))
            return 206, self.objects[key][first : last + 1]
        assert operation in {"GetObject", "GetRange"}, operation
        return (200, self.objects[key]) if key in self.objects else (404, _MISSING)


class SimulatedBlobs:
    """One process's way to the bucket. `turn` is called before each call of boto3's client; the calls of
    `objects` take their turns in its `send`."""

    def __init__(self, bucket: SimulatedBucket, objects: Objects, turn: Callable[[], None]) -> None:
        self._bucket = bucket
        self._objects = objects
        self._turn = turn

    def put(self, key: str, data: bytes) -> None:
        self._objects.put(key, data)

    def get(self, key: str, size: int | None = None) -> bytes:
        return self._objects.get(key, size)

    def get_range(self, key: str, first_byte: int, size: int) -> bytes:
        return self._objects.get_range(key, first_byte, size)

    def stored(self, key: str) -> Stored | None:
        self._turn()
        data = self._bucket.objects.get(key)
        return None if data is None else Stored(len(data))

    def compose(self, key: str, wanted: Composition) -> None:
        self._turn()
        self._bucket.objects[key] = wanted.before + self._bucket.objects[wanted.source] + wanted.after

    def url_to_get(
        self, key: str, seconds: int, content_type: str | None = None, known: Stored | None = None
    ) -> str:
        return f"get:{key}"

    def url_to_put(self, key: str, seconds: int) -> str:
        """Whoever has it puts the object there: see `SimulatedBucket.objects`."""
        return f"put:{key}"

    def delete(self, *keys: str) -> None:
        self._turn()
        for key in objects_of(keys):
            self._bucket.objects.pop(key, None)

    def delete_prefix(self, prefix: str) -> None:
        self._turn()
        for key in [key for key in self._bucket.objects if key.startswith(prefix)]:
            del self._bucket.objects[key]
