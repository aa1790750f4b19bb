"""Runs a program on simulated GPUs: ``python -m tests.simulators.nvml [--gpus N] [--profile NAME] PROGRAM [ARGUMENT ...]``."""

import argparse
import os
import subprocess
import sys

from tests.simulators.nvml import PRODUCTS, NvmlSimulator

parser = argparse.ArgumentParser(prog="python -m tests.simulators.nvml", description="Run a program on simulated GPUs.")
parser.add_argument("--gpus", type=int, default=2, help="how many (default: 2)")
parser.add_argument("--profile", choices=sorted(PRODUCTS), default="h100", help="of which product (default: h100)")
parser.add_argument("program", nargs=argparse.REMAINDER, help="the program with its arguments")
options = parser.parse_args()
if not options.program:
    parser.error("which program?")
with NvmlSimulator(gpus=options.gpus, profile=options.profile) as simulator:
    sys.exit(subprocess.run(options.program, env=os.environ | simulator.environment()).returncode)
