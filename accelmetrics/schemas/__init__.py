"""What a measurement is: the metric catalogue, reasons, errors, pydantic models, the snapshot. Knows no other room."""
