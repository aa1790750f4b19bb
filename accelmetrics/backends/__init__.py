"""Sources of measurements: one file or folder per vendor, each of which ends in one registration. Imports only ``schemas``."""
