"""The options of a read or a write, checked as a whole before anything is read or written."""
