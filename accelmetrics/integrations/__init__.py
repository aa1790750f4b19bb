"""Training frameworks and clusters."""
