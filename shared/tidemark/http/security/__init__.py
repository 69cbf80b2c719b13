"""Access control: tokens, the keys that verify them, the origin secret, hosts and origins without keys."""
