"""Writers on the bucket surface: buckets that come and go, and streams that are folded into snapshots."""

from __future__ import annotations

import itertools
import json
import math
import time
from typing import Final
from urllib.parse import urlsplit

from tests.chaos.client import JSON, Answer, Client, NoAnswer
from tests.chaos.hurried import UPLOADS_MS
from tests.chaos.lifecycles import Fork, Lifecycle
from tests.chaos.recording import StreamHistory
from tests.chaos.scene import REFUSED_THOUGH_RIGHT, RESURRECTED, VANISHED, Published

WRONG_SNAPSHOT, WRONG_LISTING = "a snapshot is not what was published", "a listing is not what was made"
SNAPSHOT_GONE: Final = "a published snapshot is gone"
#: So often a stream is left as it is, so that its last snapshot grows old.
_LEFT_ALONE: Final = 0.2
_APPENDS: Final = 8
_LARGE: Final = 80_000
_UPLOAD_TRIES: Final = 20


class BucketKeeper(Lifecycle):
    """Makes a bucket with streams in it, lists them, and deletes it all, again and again under one name."""

    async def live(self, name: str) -> None:
        for life in itertools.count():
            if self.scene.is_over or not await self._live_once(f"/{name}", f"{name}.{life}", life):
                return
            if self.chance.random() < 0.2:
                self.scene.dead.append(f"/{name}")
                return

    async def _live_once(self, bucket: str, writer: str, life: int) -> bool:
        """Whether it is deleted for certain."""
        wrong = RESURRECTED if life else REFUSED_THOUGH_RIGHT
        made = await self.insist(
            "PUT", bucket, what="create bucket", at_first={201}, later={409}, wrong=wrong
        )
        names = [f"stream-{number}" for number in range(self.chance.randrange(1, 4))]
        if made is None or not await self._fill(bucket, names, writer, life):
            return False
        full = await self.insist(
            "DELETE", bucket, what="delete a full bucket", at_first={409}, wrong=VANISHED
        )
        if full is None:
            return False
        for name in names:
            if not await self.delete(f"{bucket}/{name}"):
                return False
        return await self._delete_bucket(bucket)

    async def _fill(self, bucket: str, names: list[str], writer: str, life: int) -> bool:
        for number, name in enumerate(names):
            path = f"{bucket}/{name}"
            history = self.history(path, life)
            if not await self.create(path, again=life > 0):
                return False
            if not await self.append_some(path, history, f"{writer}.{number}", range(2)):
                return False
            history.log = await self.read_all(path, history)
        return await self._list(bucket, names)

    async def _delete_bucket(self, bucket: str) -> bool:
        gone = await self.insist(
            "DELETE",
            bucket,
            what="delete bucket",
            at_first={204},
            later={404},
            wrong="an empty bucket is not deleted",
        )
        return gone is not None and await self.is_gone(bucket)

    async def _list(self, bucket: str, names: list[str]) -> bool:
        answer = await self.insist("GET", f"{bucket}/streams", what="list", at_first={200}, wrong=VANISHED)
        if answer is None:
            return False
        listed = [stream["stream_id"] for stream in json.loads(answer.body)["streams"]]
        expected, found = (json.dumps(sorted(each)).encode() for each in (names, listed))
        self.scene.compare(bucket, "listing", expected, found, WRONG_LISTING)
        return True


class Snapshotter(Lifecycle):
    """Appends, publishes a snapshot at the tail, directly or by an upload, and reads it and bootstrap.

    It is alone on its stream. What lies between two snapshots is one history: the older part is trimmed.
    """

    async def live(self, name: str) -> None:
        bucket = f"/{name}"
        made = await self.insist("PUT", bucket, what="create bucket", at_first={201}, later={409})
        path = f"{bucket}/doc"
        if made is None or not await self.create(path):
            return
        latest: Published | None = None
        while not self.scene.is_over:
            following = await self._fold(path, latest)
            if following is None:
                return
            latest = following
            if self.chance.random() < _LEFT_ALONE:
                break
            await self.pause(1)
        if latest is not None:
            self.scene.kept_snapshots.append(latest)

    async def _fold(self, path: str, latest: Published | None) -> Published | None:
        """One round; None where the stream is to be left."""
        base = latest.offset if latest else 0
        history = self.history(path, base)
        history.base = history.known_end = base
        writer = f"{self.name}.{base}"
        if not await self.append_some(path, history, writer, range(self.chance.randrange(1, _APPENDS))):
            return None
        history.log = await self.read_all(path, history, base)
        if history.log is None:
            return None
        if latest is not None and not await self._bootstrap(latest, history):
            return None
        if latest is None and not await self._fork(path, history):
            return None
        body = json.dumps({"upto": history.known_end, "by": self.name, "pad": "x" * self._padding()}).encode()
        following = Published(path, history.known_end, body)
        if not await self._publish(following):
            return None
        return following if await self.read_snapshot(following) else None

    async def _fork(self, path: str, history: StreamHistory) -> bool:
        """A fork that lives to the end, on what the snapshots let go of."""
        name = f"{path[1:].replace('/', '-')}-fork"
        fork = await Fork(self.scene, name).make(path, history)
        if fork is not None:
            fork.history.inherited = (history.log or b"")[: fork.at]
            self.scene.keep(fork.path, fork.history)
        return fork is not None

    def _padding(self) -> int:
        return _LARGE if self.chance.random() < 0.1 else 10

    async def _publish(self, snapshot: Published) -> bool:
        path, headers, body = f"{snapshot.path}/snapshot/{snapshot.offset:016d}", dict(JSON), snapshot.body
        expires_at = math.inf
        if self.chance.random() < 0.5:
            # The server counts from when it made the upload, which is later than this.
            expires_at = time.monotonic() + UPLOADS_MS / 1000
            upload = await self._upload(path, body)
            if upload is None:
                return False
            headers, body = headers | {"Snapshot-Upload": upload}, b""
        what = "publish by upload" if not body else "publish"
        answer = await self.insist(
            "PUT", path, body, headers, what=what, at_first={204}, expires_at=expires_at
        )
        return answer is not None and answer.status == 204

    async def _upload(self, path: str, body: bytes) -> str | None:
        """Its name, once the body is there."""
        begun = await self.insist("POST", f"{path}/upload", what="begin upload", at_first={201})
        if begun is None:
            return None
        asked = json.loads(begun.body)
        url = urlsplit(asked["url"])
        assert url.port is not None
        client = Client(url.port)
        for _ in range(_UPLOAD_TRIES):
            try:
                put = await client.request("PUT", f"{url.path}?{url.query}", body, headers=asked["headers"])
            except NoAnswer:
                await self.pause(0.3)
                continue
            if put.status in {200, 412}:  # 412: a try before this one has put it there.
                client.close()
                return str(asked["upload"])
            await self.pause(0.3)
        client.close()
        return None

    async def read_snapshot(self, snapshot: Published) -> bool:
        """Whether it is there; whether it is right is for the judge."""
        latest = await self.insist(
            "GET", f"{snapshot.path}/snapshot", what="latest snapshot", at_first={307}, wrong=SNAPSHOT_GONE
        )
        if latest is None:
            return False
        place = f"{snapshot.path}/snapshot/{snapshot.offset:016d}"
        pointed = urlsplit(latest.headers.get("location", "")).path
        self._compare(snapshot, "latest snapshot", place.encode(), pointed.encode())
        answer = await self.insist("GET", place, what="read snapshot", at_first={200}, wrong=SNAPSHOT_GONE)
        if answer is None:
            return False
        self._compare(snapshot, "snapshot", snapshot.body, answer.body)
        return True

    async def _bootstrap(self, snapshot: Published, history: StreamHistory) -> bool:
        answer = await self.insist(
            "GET", f"{snapshot.path}/bootstrap", what="bootstrap", at_first={200}, wrong=SNAPSHOT_GONE
        )
        if answer is None:
            return False
        first, *updates = _parts(answer)
        self._compare(snapshot, "bootstrap's snapshot", snapshot.body, first)
        if answer.up_to_date:
            found = b"".join(update + b"," for update in updates)
            self._compare(snapshot, "bootstrap's updates", history.log or b"", found)
        return True

    def _compare(self, snapshot: Published, what: str, expected: bytes, found: bytes) -> None:
        self.scene.compare(snapshot.path, what, expected, found, WRONG_SNAPSHOT)


def _parts(answer: Answer) -> list[bytes]:
    boundary = answer.headers["content-type"].partition("boundary=")[2].encode()
    pieces = (b"\r\n" + answer.body).split(b"\r\n--" + boundary)
    return [piece.partition(b"\r\n\r\n")[2] for piece in pieces[1:-1]]
