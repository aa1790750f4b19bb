"""Reports of recordings: read once, reduced to a bounded size, and written as text, Markdown, JSON or pages with plots."""
