"""The queue of subscriptions, handed to the function that the template says works it off, as Lambda does."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from tidemark.aws.sqs import MAX_RECEIVE_SECONDS, receiving_client
from tidemark.local.environments import Environments, InvocationFailed, Throttled
from tidemark.local.template import Function
from tidemark.server.standard_error import report

TROUBLE_SECONDS: Final = 1.0
#: Batches under way at once, as in the template (MaximumConcurrency): a slow webhook holds up one of them.
BATCHES: Final = 100


class QueuePump:
    """Threads, from `start` to `stop`."""

    def __init__(self, function: Function, queue_url: str, batch_size: int) -> None:
        self._queue_url = queue_url
        self._batch_size = batch_size
        self._environments = Environments(function, limit=BATCHES)
        self._sqs = receiving_client()
        self._stopped = threading.Event()
        self._free = threading.Semaphore(BATCHES)
        self._pool = ThreadPoolExecutor(BATCHES, thread_name_prefix="subscriptions")
        self._thread = threading.Thread(target=self._run, name="pump of the queue", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait for what is running: it may be cut off anywhere, as in Lambda."""
        self._stopped.set()
        self._environments.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        while not self._stopped.is_set():
            with self._free:
                pass  # Wait until a batch can be taken, and leave the messages to the queue until then.
            try:
                messages = self._receive()
            except Exception as error:  # noqa: BLE001 - wakes depend on this thread: it must not end
                if not self._stopped.is_set():
                    report(f"the subscriptions' queue cannot be read: {error!r}")
                self._stopped.wait(TROUBLE_SECONDS)
                continue
            if messages and not self._stopped.is_set():
                self._free.acquire()
                self._pool.submit(self._deliver, messages)

    def _receive(self) -> list[dict[str, Any]]:
        reply = self._sqs.receive_message(
            QueueUrl=self._queue_url,
            MaxNumberOfMessages=self._batch_size,
            WaitTimeSeconds=MAX_RECEIVE_SECONDS,
        )
        found: list[dict[str, Any]] = reply.get("Messages", [])
        return found

    def _deliver(self, messages: list[dict[str, Any]]) -> None:
        try:
            failed = self._invoke(messages)
            for message in messages:
                if message["MessageId"] not in failed:
                    self._sqs.delete_message(QueueUrl=self._queue_url, ReceiptHandle=message["ReceiptHandle"])
        except Exception as error:  # noqa: BLE001 - the messages come again
            if not self._stopped.is_set():
                report(f"messages of subscriptions come again: {error!r}")
        finally:
            self._free.release()

    def _invoke(self, messages: list[dict[str, Any]]) -> set[str]:
        """The ids of the messages that come again."""
        records = [
            {"messageId": message["MessageId"], "body": message["Body"], "eventSource": "aws:sqs"}
            for message in messages
        ]
        try:
            answer = json.loads(self._environments.invoke(json.dumps({"Records": records}).encode()).result())
        except (InvocationFailed, Throttled) as failure:
            report(f"the function of subscriptions failed: {failure}")
            return {message["MessageId"] for message in messages}
        return {failure["itemIdentifier"] for failure in (answer or {}).get("batchItemFailures", ())}
