"""Subscriptions (§6, §7): webhooks are called, and wake events are written, for what is new in streams.

Rules (no I/O, no clock):

    configuration   what a subscription follows and how it delivers
    state           the steps from one delivery to the next
    webhook_url     the URLs and addresses that may be called

Storage:

    records         what is stored, as items
    storage         reading and writing them
    pending         which streams have something new, and which subscriptions are overdue

Use cases, with what refuses them (`protocol/errors.py`); `http` asks for them:

    subscribe             lifecycle: SubscriptionExists
    unsubscribe           lifecycle: nothing
    require_subscription  lifecycle: SubscriptionNotFound
    add_streams           lifecycle: SubscriptionNotFound
    remove_stream         lifecycle: SubscriptionNotFound
    list_links            lifecycle: nothing
    list_subscriptions    lifecycle: nothing
    claim                 workers: SubscriptionNotFound, InvalidSubscription, AlreadyClaimed, NoPendingWork
    answer                workers: SubscriptionNotFound, InvalidSubscription, DeliveryTokenInvalid,
                          DeliveryFenced, InvalidAck
    deliver_now           workers: SubscriptionNotFound, AlreadyClaimed, NoPendingWork

Behind an append, in the functions `notifier` and `subscriptions`, and in the server:

    notices         which subscriptions an append concerns, and the notices that say so
    deliveries      what a notice leads to
    fairness        receivers that hang hold up no others
    webhook         one call
    signing_keys    the keys that sign it
"""
