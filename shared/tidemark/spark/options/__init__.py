"""What a read or a write is asked for: the options, checked as a whole before anything is read or written."""
