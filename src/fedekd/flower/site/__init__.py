"""A site's half: the answer to one message, the training behind it, and what may leave. Nothing here knows Flower."""
