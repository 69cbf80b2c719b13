"""The parts of delivery, made from the settings."""

from __future__ import annotations

from tidemark.aws.sqs import WorkQueue, sqs_client
from tidemark.service.stores import Stores, connect
from tidemark.settings import Settings
from tidemark.subscriptions.deliveries import Attendant
from tidemark.subscriptions.signing_keys import SigningKeys, private_keys_at


def signing_keys(settings: Settings, stores: Stores) -> SigningKeys | None:
    """None where no place for keys is set."""
    if not settings.webhook_keys:
        return None
    return SigningKeys(stores.table, private_keys_at(settings.webhook_keys))


def connect_attendant(settings: Settings) -> Attendant:
    stores = connect(settings)
    return Attendant(
        stores,
        WorkQueue(sqs_client, settings.subscriptions_queue_url),
        signing_keys(settings, stores),
        settings.public_url or None,
        allow_local=settings.allows_local_webhooks,
    )
