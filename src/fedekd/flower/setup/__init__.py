"""Before a federation runs: folders, keys, certificates, and everything that can be found wrong."""
