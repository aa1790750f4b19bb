"""Training frameworks: the core that all stand on, and one file for each."""
