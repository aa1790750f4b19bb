"""``python -m accelmetrics`` is the command ``accelmetrics``."""

from accelmetrics.cli import program

if __name__ == "__main__":
    program()
