"""What people and monitors ask about streams: listings, stats, start points, and what a token may do."""
