"""Tools for operators of a deployed stack."""
