"""Use cases: load, decide, commit. Free of HTTP, and synchronous but for the group commit, which exists
because many requests are under way at once.

It imports the rules, the log and the blobs, and touches storage through `Stores` alone; `http`,
`subscriptions`, the janitor and Spark call it. What HTTP asks of it, and what refuses that
(`protocol/errors.py`); each may also raise Busy, OutcomeUnknown, StorageUnavailable or StorageSilent for
storage, and Damaged for bytes:

    create                create: Malformed, TooManyMessages, Conflict, StreamNotFound, RetentionGone,
                          BucketNotFound
    append                append: StreamNotFound, SoftDeleted, Malformed, TooManyMessages, AppendAfterClose,
                          ContentTypeMismatch, SequenceRegression, SequenceGap, StaleEpoch,
                          PreconditionFailed
    GroupCommit           group_commit: as append
    load_head             load: StreamNotFound, SoftDeleted
    read                  read: StreamNotFound, SoftDeleted, StaleCursor, RetentionGone, HistoryGone,
                          Malformed
    read_on               read: StreamNotFound, SoftDeleted
    renew_while_waiting   read: StreamNotFound, SoftDeleted
    delete                delete: StreamNotFound, SoftDeleted
    bootstrap             snapshots: StreamNotFound, SoftDeleted
    publish_snapshot      snapshots: StreamNotFound, SoftDeleted, RetentionGone, OffsetBeyondTail, Malformed,
                          Conflict, UploadNotFound, PayloadTooLarge
    begin_upload          snapshots: as publish_snapshot
    latest_snapshot       snapshots: StreamNotFound, SoftDeleted, SnapshotNotFound
    read_snapshot         snapshots: StreamNotFound, SoftDeleted, SnapshotNotFound
    delete_snapshot       snapshots: StreamNotFound, SoftDeleted, SnapshotNotFound, SnapshotNeeded
    create_bucket         buckets: BucketExists
    describe_bucket       buckets: BucketNotFound
    delete_bucket         buckets: BucketNotFound, BucketNotEmpty
    list_buckets          buckets: nothing
    list_streams          catalog: BucketNotFound
    load_stats            catalog: StreamNotFound, SoftDeleted
    load_times            catalog: as read
    parse_start_point     start_point: Malformed
    find_start            start_point: StreamNotFound, SoftDeleted
    begin_watch           watch: StreamNotFound, SoftDeleted
    begin_watches         watch: Malformed
    load_tail             watch: StreamNotFound, SoftDeleted
"""
