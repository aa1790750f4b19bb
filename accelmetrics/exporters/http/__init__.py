"""The HTTP server of the scrape endpoint: tornado on a separate thread, safe against slow and hostile clients."""
