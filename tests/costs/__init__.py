"""What an operation costs, from the storage calls it makes: the table of `docs/costs.md`."""
