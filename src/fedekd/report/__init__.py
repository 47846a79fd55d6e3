"""Results, methods, datasets and partitions, written for people to read."""
