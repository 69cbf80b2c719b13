"""Writers on the bucket surface: buckets that come and go, and streams that are folded into snapshots."""

import itertools
import json
import time
from contextlib import aclosing, suppress
from typing import Final
from urllib.parse import urljoin, urlsplit

from tests.chaos.client import JSON, Answer, Client, NoAnswer
from tests.chaos.hurried import UPLOADS_MS
from tests.chaos.lifecycles import Fork, Lifecycle
from tests.chaos.recording import StreamHistory
from tests.chaos.scene import REFUSED_THOUGH_RIGHT, RESURRECTED, VANISHED, Left, Published

WRONG_SNAPSHOT, WRONG_LISTING = "a snapshot is not what was published", "a listing is not what was made"
SNAPSHOT_GONE, NOT_DELETED = "a published snapshot is gone", "an empty bucket is not deleted"
#: So often a stream is left as it is, so that its last snapshot grows old.
_LEFT_ALONE: Final = 0.2
_APPENDS: Final = 8
_LARGE: Final = 80_000
_UPLOAD_TRIES: Final = 20


class BucketKeeper(Lifecycle):
    """Makes a bucket with streams in it, lists them, and deletes it all, again and again under one name."""

    async def live(self, name: str) -> None:
        bucket = f"/{name}"
        for life in itertools.count():
            wrong = RESURRECTED if life else REFUSED_THOUGH_RIGHT
            await self.insist("PUT", bucket, what="create bucket", at_first={201}, later={409}, wrong=wrong)
            streams = [f"stream-{number}" for number in range(self.chance.randrange(1, 4))]
            for number, stream in enumerate(streams):
                await self._fill(f"{bucket}/{stream}", f"{name}.{life}.{number}", life)
            await self._list(bucket, streams)
            await self.insist("DELETE", bucket, what="delete a full bucket", at_first={409}, wrong=VANISHED)
            for stream in streams:
                await self.delete(f"{bucket}/{stream}")
            await self.insist(
                "DELETE", bucket, what="delete bucket", at_first={204}, later={404}, wrong=NOT_DELETED
            )
            await self.is_gone(bucket)
            if self.is_last_life(bucket):
                return

    async def _fill(self, path: str, writer: str, life: int) -> None:
        history = self.history(path, life)
        await self.create(path, again=life > 0)
        await self.append_some(path, history, writer, 2)
        await self.read_log(path, history)

    async def _list(self, bucket: str, streams: list[str]) -> None:
        answer = await self.insist("GET", f"{bucket}/streams", what="list", at_first={200}, wrong=VANISHED)
        listed = [stream["stream_id"] for stream in json.loads(answer.body)["streams"]]
        expected, found = (json.dumps(sorted(each)).encode() for each in (streams, listed))
        self.scene.compare(bucket, "listing", expected, found, WRONG_LISTING)


class Snapshotter(Lifecycle):
    """Appends, publishes a snapshot at the tail, directly or by an upload, and reads it and bootstrap.

    It is alone on its stream. What lies between two snapshots is one history: the older part is trimmed.
    """

    async def live(self, name: str) -> None:
        await self.insist("PUT", f"/{name}", what="create bucket", at_first={201}, later={409})
        path = f"/{name}/doc"
        await self.create(path)
        latest: Published | None = None
        while not self.scene.is_over:
            latest = await self._fold(path, latest)
            if self.chance.random() < _LEFT_ALONE:
                break
            await self.pause(1)
        if latest is not None:
            self.scene.kept_snapshots.append(latest)

    async def _fold(self, path: str, latest: Published | None) -> Published:
        """One round."""
        base = latest.offset if latest else 0
        history = self.history(path, base)
        history.base = history.known_end = base
        await self.append_some(path, history, f"{self.name}.{base}", self.chance.randrange(1, _APPENDS))
        log = await self.read_log(path, history)
        if latest is not None:
            await self._bootstrap(latest, log)
        else:
            await self._fork(path, history, log)
        body = json.dumps({"upto": history.known_end, "by": self.name, "pad": "x" * self._padding()}).encode()
        following = Published(path, history.known_end, body)
        await self._publish(following)
        await self.read_snapshot(following)
        return following

    async def _fork(self, path: str, history: StreamHistory, log: bytes) -> None:
        """A fork that lives to the end, on what the snapshots let go of."""
        fork = await Fork(self.scene, f"{path[1:].replace('/', '-')}-fork").make(path, history)
        fork.history.inherited = log[: fork.at]
        self.scene.keep(fork.path, fork.history)

    def _padding(self) -> int:
        return _LARGE if self.chance.random() < 0.1 else 10

    async def _publish(self, snapshot: Published) -> None:
        path = _place(snapshot)
        if self.chance.random() < 0.5:
            await self.insist("PUT", path, snapshot.body, JSON, what="publish", at_first={204})
            return
        # The server counts from when it made the upload, which is later than this.
        expires_at = time.monotonic() + UPLOADS_MS / 1000
        headers = JSON | {"Snapshot-Upload": await self._upload(path, snapshot.body)}
        answer = await self.insist(
            "PUT", path, b"", headers, what="publish by upload", at_first={204}, expires_at=expires_at
        )
        if answer.status != 204:
            raise Left

    async def _upload(self, path: str, body: bytes) -> str:
        """Its name, once the body is there."""
        begun = await self.insist("POST", f"{path}/upload", what="begin upload", at_first={201})
        asked = json.loads(begun.body)
        url = urlsplit(asked["url"])
        assert url.port is not None
        async with aclosing(Client(url.port)) as client:
            for _ in range(_UPLOAD_TRIES):
                with suppress(NoAnswer):
                    target = f"{url.path}?{url.query}"
                    put = await client.request("PUT", target, body, headers=asked["headers"])
                    if put.status in {200, 412}:  # 412: a try before this one has put it there.
                        return str(asked["upload"])
                await self.pause(0.3)
        raise Left

    async def read_snapshot(self, snapshot: Published) -> None:
        latest = await self.insist(
            "GET", f"{snapshot.path}/snapshot", what="latest snapshot", at_first={307}, wrong=SNAPSHOT_GONE
        )
        place = _place(snapshot)
        pointed = urljoin(f"{snapshot.path}/snapshot", latest.headers.get("location", ""))
        self._compare(snapshot, "latest snapshot", place.encode(), pointed.encode())
        answer = await self.insist("GET", place, what="read snapshot", at_first={200}, wrong=SNAPSHOT_GONE)
        self._compare(snapshot, "snapshot", snapshot.body, answer.body)

    async def _bootstrap(self, snapshot: Published, log: bytes) -> None:
        answer = await self.insist(
            "GET", f"{snapshot.path}/bootstrap", what="bootstrap", at_first={200}, wrong=SNAPSHOT_GONE
        )
        first, *updates = _parts(answer)
        self._compare(snapshot, "bootstrap's snapshot", snapshot.body, first)
        if answer.up_to_date:
            found = b"".join(update + b"," for update in updates)
            self._compare(snapshot, "bootstrap's updates", log, found)

    def _compare(self, snapshot: Published, what: str, expected: bytes, found: bytes) -> None:
        self.scene.compare(snapshot.path, what, expected, found, WRONG_SNAPSHOT)


def _place(snapshot: Published) -> str:
    return f"{snapshot.path}/snapshot/{snapshot.offset:016d}"


def _parts(answer: Answer) -> list[bytes]:
    boundary = answer.headers["content-type"].partition("boundary=")[2].encode()
    pieces = (b"\r\n" + answer.body).split(b"\r\n--" + boundary)
    return [piece.partition(b"\r\n\r\n")[2] for piece in pieces[1:-1]]
