"""Tools for operators of a deployed stack, each run as `python -m tidemark.ops.<module>`."""
