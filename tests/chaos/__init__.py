"""`make chaos`: writers and readers of every kind while processes, connections and the disk fail."""
