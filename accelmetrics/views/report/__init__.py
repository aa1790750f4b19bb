"""What recordings came to: read once, reduced to what a report shows, told as text, Markdown, JSON, or drawn."""
