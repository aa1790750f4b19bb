"""Where measurements come from: one file or folder per source, each ending in one registration. Knows ``schemas`` only."""
