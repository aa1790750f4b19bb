"""A stand-in for a vendor's command: does what the file beside it says, and notes how it was called."""

import json
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
with (HERE / "calls.jsonl").open("a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\n")
behaviour = json.loads((HERE / "behaviour.json").read_text())
sys.stderr.write(behaviour["stderr"])
sys.stdout.write(behaviour["stdout"])
sys.stdout.flush()
while behaviour["hang"]:
    time.sleep(60)
sys.exit(behaviour["status"])
