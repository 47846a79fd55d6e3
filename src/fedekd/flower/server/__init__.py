"""The server's half: visit after visit to all sites, and what it keeps of them. What knows Flower is named so."""
