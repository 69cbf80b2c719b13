"""The official suite and the official clients, against a server started as a user starts it."""
