"""Bugs that tests must catch. `table.py` lists them; `make mutations` plants each in a copy of the tree."""
