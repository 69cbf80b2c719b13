"""Access to AWS: signed requests, proof that a reply is whole, retries, and a client for each service.

The log, the blobs and everything above import it; it imports the rules' errors and the metrics, and knows
neither streams nor batches. It talks to AWS, or to what stands in for it, and to nothing else.
"""
