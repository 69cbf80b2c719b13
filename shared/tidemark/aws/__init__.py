"""Access to AWS: signed requests, checks that a reply is complete, retries, and a client for each service.

The log, the blobs and all higher layers import this package. It imports only the errors of `protocol` and the
metrics, and has no notion of streams or batches. It connects only to AWS or a stand-in.
"""
