"""Cannot be imported."""

raise RuntimeError("not on this machine")
