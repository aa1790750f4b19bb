"""A stand-in for a vendor's command: does what the file beside it says, and notes how it was called."""

import json
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
with (HERE / "calls.jsonl").open("a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\n")
behaviours = json.loads((HERE / "behaviour.json").read_text())
asked = (" ".join(sys.argv[1:]), sys.argv[1] if len(sys.argv) > 1 else "", "")
behaviour = next(behaviours[each] for each in asked if each in behaviours)
sys.stderr.write(behaviour["stderr"])
sys.stdout.write(behaviour["stdout"])
sys.stdout.flush()
while behaviour["hang"]:
    time.sleep(60)
sys.exit(behaviour["status"])
