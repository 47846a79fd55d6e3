"""Runs: planned from settings, executed, and kept as records in a folder."""
