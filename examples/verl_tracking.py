"""verl's tracking, as its trainers use it: what it logs has rows of the devices. Runs on CPU, without a model.

    pip install accelmetrics verl
    python examples/verl_tracking.py

In a training nothing of this is typed: `+trainer.enable_gpu_monitoring=true +trainer.gpu_monitor_interval=2.0` on the command line of
`verl.trainer.main_ppo` does it.
"""

import time

from verl.utils.tracking import Tracking

config = {"trainer": {"enable_gpu_monitoring": True, "gpu_monitor_interval": 0.1}}
tracking = Tracking("project", "experiment", ["console", "file"], config)
for step in range(1, 4):
    time.sleep(0.3)
    tracking.log({"actor/pg_loss": 1.0 / step, "perf/total_num_tokens": 4096}, step=step)
tracking.finish()
