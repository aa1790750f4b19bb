"""The page of ``accelmetrics serve --ui``: its static files, and the JSON documents that the page and other clients request."""
