"""The deployed functions on one machine, with no account (`VIA=lambda`), and the fixtures of pytest.

It turns requests into API Gateway's events and the table's changes into a trigger's, and starts emulators for
SQS and S3. The server without AWS is in `server` and `engine`. It may import every room; `cli` imports it by
name, and nothing else does. Nothing of it is deployed.
"""
