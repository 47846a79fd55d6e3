"""What server and sites agree on: visits, payloads, terms, schema, and the checks of what comes from elsewhere."""

PIECE = 4 << 20  # bytes of a model in one request, which is held in memory whole
