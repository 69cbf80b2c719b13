"""How fast Tidemark is, beside the protocol's Node reference server: `python -m benchmarks`.

And what an append costs in CPU, beside the bare storage call: `python -m benchmarks.cpu`.
"""
