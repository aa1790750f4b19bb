"""Programs that are measured, each in a process of its own. They print one JSON object."""
