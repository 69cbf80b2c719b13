"""Use cases: load, decide, commit. Free of HTTP, and synchronous but for the group commit, which exists
because many requests are under way at once.

It imports the rules, the log and the blobs, and touches storage through `Stores` alone; `http`,
`subscriptions`, the janitor and Spark call it. A union for each operation names the errors that refuse it:
`AppendError` those of `append`, and of the group commit. Each may also raise one of `OfStorage`.
`tests/service/test_errors.py` derives them from the code.
"""

from __future__ import annotations

from tidemark.protocol import errors as e

OfStorage = e.Busy | e.OutcomeUnknown | e.StorageUnavailable | e.StorageSilent | e.Damaged | e.FormatTooNew
LoadHeadError = e.StreamNotFound | e.SoftDeleted
OfBody = e.Malformed | e.TooManyMessages
OfTail = e.AppendAfterClose | e.SequenceRegression | e.SequenceGap | e.StaleEpoch | e.PreconditionFailed
AppendError = LoadHeadError | OfBody | e.ContentTypeMismatch | OfTail
CreateError = OfBody | e.StreamNotFound | e.BucketNotFound | e.Conflict | e.RetentionGone | e.HistoryGone
ReadOnError = BootstrapError = LoadHeadError | e.HistoryGone | e.Malformed
ReadError = LoadTimesError = ReadOnError | e.StaleCursor | e.RetentionGone
DeleteError = RenewWhileWaitingError = LoadHeadError
LatestSnapshotError = ReadSnapshotError = LoadHeadError | e.SnapshotNotFound
DeleteSnapshotError = ReadSnapshotError | e.SnapshotNeeded
TrimBelowError = LoadHeadError | e.OffsetBeyondTail | e.Malformed | e.Conflict
BeginUploadError = TrimBelowError | e.RetentionGone
PublishSnapshotError = BeginUploadError | e.UploadNotFound | e.PayloadTooLarge
CreateBucketError = e.BucketExists
DescribeBucketError = ListStreamsError = e.BucketNotFound
DeleteBucketError = e.BucketNotFound | e.BucketNotEmpty
LoadStatsError = FindStartError = BeginWatchError = LoadTailError = LoadHeadError
ParseStartPointError = e.Malformed
