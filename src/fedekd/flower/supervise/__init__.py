"""Processes kept alive until a federation is over: Flower's own, the executor, and the demo of all of them."""
