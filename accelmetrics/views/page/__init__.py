"""The page of ``accelmetrics serve --ui``: static files, and JSON documents for the page and other clients."""
