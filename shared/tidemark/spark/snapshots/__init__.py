"""Many streams folded at once, and the results published as their snapshots."""
