"""Where measurements go: one file per sink."""
