"""Federated learning that shows every site whether joining the federation helped or harmed it."""

__version__ = "0.1.0"
