"""Pictures of a node and of a fleet for a terminal: pure functions from what is to be shown to lines."""
