"""The durable proxy: an upstream's answer becomes a stream."""
