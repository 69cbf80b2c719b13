"""What a write keeps between its tasks and its commit: files of appends, and a manifest for each batch."""
