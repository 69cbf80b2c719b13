"""What an operation costs, from the storage calls it makes: the tables of `docs/costs.md`."""
