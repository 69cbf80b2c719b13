"""Connections of a driver or a task: to the table and the bucket, and to an HTTP server."""
