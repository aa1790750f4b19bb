"""Sources of measurements: one file or folder per vendor, each ending in one registration. Imports only ``schemas``."""
