"""Access control: tokens, keys, the origin secret, and checks of Host and Origin on servers without keys."""
