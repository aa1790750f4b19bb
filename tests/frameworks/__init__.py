"""The integrations beside the real frameworks.

`make test-integrations` installs each folder's frameworks into an environment of its own.
"""
