"""The page of ``accelmetrics serve --ui``: its files, and the documents that it and other clients read."""
