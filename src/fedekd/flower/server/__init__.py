"""The server's half: visit after visit to all sites, and what it keeps of them. Its rounds know nothing of Flower."""
