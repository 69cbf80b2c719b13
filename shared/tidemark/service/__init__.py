"""Use cases: load, decide, commit. Free of HTTP, and synchronous but for the group commit, which exists
because many requests are under way at once.

It imports the rules, the log and the blobs, and touches storage through `Stores` alone; `http`,
`subscriptions`, the janitor and Spark call it. What HTTP asks of it, and what refuses that
(`protocol/errors.py`); each may also raise Busy, OutcomeUnknown, StorageUnavailable or StorageSilent for
storage, and Damaged for bytes:

    create                create: Malformed, TooManyMessages, Conflict, StreamNotFound, RetentionGone,
                          BucketNotFound
    append                append: StreamNotFound, StreamGone, Malformed, TooManyMessages, StreamClosed,
                          ContentTypeMismatch, SequenceRegression, SequenceGap, ProducerFenced,
                          PreconditionFailed
    GroupCommit           group_commit: as append
    load_head             load: StreamNotFound, StreamGone
    read                  read: StreamNotFound, StreamGone, StreamReplaced, RetentionGone, HistoryGone,
                          Malformed
    read_on               read: StreamNotFound, StreamGone
    renew_while_waiting   read: StreamNotFound, StreamGone
    delete                delete: StreamNotFound, StreamGone
    bootstrap             bootstrap: StreamNotFound, StreamGone
    publish_snapshot      snapshots: StreamNotFound, StreamGone, RetentionGone, OffsetBeyondTail, Malformed,
                          UploadNotFound, PayloadTooLarge
    begin_upload          snapshots: as publish_snapshot
    latest_snapshot       snapshots: StreamNotFound, StreamGone, SnapshotNotFound
    read_snapshot         snapshots: StreamNotFound, StreamGone, SnapshotNotFound
    delete_snapshot       snapshots: StreamNotFound, StreamGone, SnapshotNotFound, SnapshotNeeded
    create_bucket         buckets: BucketExists
    describe_bucket       buckets: BucketNotFound
    delete_bucket         buckets: BucketNotFound, BucketNotEmpty
    list_buckets          buckets: nothing
    list_streams          catalog: BucketNotFound
    load_stats            catalog: StreamNotFound, StreamGone
    load_times            catalog: as read
    parse_start_point     start_point: Malformed
    find_start            start_point: StreamNotFound, StreamGone
"""
