"""Use cases: load, decide, commit. The room knows no HTTP, and is synchronous except for the group commit,
which serves concurrent requests.

The use cases import the rules, the log and the blobs, and reach storage through `Stores` alone. The callers
are `http`, `subscriptions`, the janitor and Spark. A union names the errors of an operation: `AppendError`
those of `append` and of the group commit. Every operation may also raise `OfStorage`.
`tests/service/test_errors.py` derives the unions from the code.
"""

from __future__ import annotations

from tidemark.protocol import errors as e

OfStorage = e.Busy | e.OutcomeUnknown | e.StorageUnavailable | e.StorageSilent | e.Damaged | e.FormatTooNew
LoadHeadError = e.StreamNotFound | e.SoftDeleted
OfBody = e.Malformed | e.TooManyMessages
OfTail = e.AppendAfterClose | e.SequenceRegression | e.SequenceGap | e.StaleEpoch | e.PreconditionFailed
AppendError = LoadHeadError | OfBody | e.ContentTypeMismatch | OfTail
OfFork = e.StreamNotFound | e.Conflict | e.RetentionGone | e.HistoryGone
CreateError = OfBody | OfFork | OfTail | e.BucketNotFound
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
