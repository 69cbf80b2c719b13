"""What an operator of a deployed stack runs, each as `python -m tidemark.ops.<module>`."""
