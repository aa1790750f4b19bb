"""Terminal pictures of a node and of a fleet: pure functions from views to styled lines of text."""
