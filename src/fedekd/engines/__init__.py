"""Engines carry out a method's steps: serial, client by client, on any module; stacked, all clients at once."""
