"""The HTTP server of the scrape endpoint: tornado on a thread of its own, safe against slow and hostile clients."""
