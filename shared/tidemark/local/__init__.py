"""The local stack: the deployed functions on one machine, with no account (`python -m tidemark.local`).

It turns requests into API Gateway's events and the table's changes into a trigger's, and starts emulators for
SQS and S3. It may import every room, and none imports it but the command line, by its name; nothing of it is
deployed.
"""
