"""A write's files between its tasks and its commit: files of appends, and a manifest for each batch."""
