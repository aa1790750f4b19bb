"""Run the command ``accelmetrics`` as ``python -m accelmetrics``."""

from accelmetrics.cli import program

if __name__ == "__main__":
    program()
