"""The same metrics under other monitors' names."""
