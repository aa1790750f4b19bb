"""Ray: each row that is logged has what the devices of all nodes did since the row before. Runs on CPU, on one node or on a cluster.

pip install accelmetrics ray
python examples/ray_fleet.py [folder for Ray's own files]
"""

import json
import sys
import time

import ray

from accelmetrics.integrations.ray import Fleet

STEPS, STEPS_PER_ROW, WORKERS = 300, 100, 2


@ray.remote(num_cpus=0.5)
class Worker:
    """Fits y = 3 x to its own points."""

    def __init__(self, number):
        self.points = [(number + 1) * part / 10 for part in range(-10, 11)]

    def gradient(self, slope):
        return sum((slope - 3) * x * x for x in self.points) / len(self.points)


def main(folder=None):
    ray.init(num_cpus=2, include_dashboard=False, _temp_dir=folder)  # to join a cluster: ray.init(address="auto")
    workers = [Worker.remote(number) for number in range(WORKERS)]
    slope = 0.0
    with Fleet(interval=0.1) as fleet:
        for step in range(1, STEPS + 1):
            slope -= 0.1 * sum(ray.get([worker.gradient.remote(slope) for worker in workers])) / WORKERS
            if step % STEPS_PER_ROW == 0:
                while step == STEPS_PER_ROW and any(fleet.nodes.values() or [True]):
                    time.sleep(0.1)  # this example is over before its first reading; a training is not
                print(json.dumps({"step": step, "loss": (slope - 3) ** 2, **fleet.row()}), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
