"""The model of measurements: metric catalogue, reasons, errors, snapshots, records, statistics. Imports no other room."""
