"""A real federation on Flower: each site with its own data and private model on its own disk."""
