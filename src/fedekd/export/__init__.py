"""A site's own model: kept by a run, exported with a card that states its Δ, and used on new rows."""
