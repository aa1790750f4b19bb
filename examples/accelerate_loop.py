"""accelerate: each row that the program logs has what the devices did since the row before. Runs on CPU, without a download.

pip install accelmetrics accelerate tensorboard
python examples/accelerate_loop.py [output folder] [trackers, separated by commas]
"""

import sys

import torch
from accelerate import Accelerator

from accelmetrics.integrations.accelerate import DeviceTracker


def main(folder="output", trackers="tensorboard"):
    accelerator = Accelerator(cpu=True, log_with=[DeviceTracker(interval=0.1), *trackers.split(",")], project_dir=folder)
    accelerator.init_trackers("doubling", config={"rate": 0.1})
    model = torch.nn.Linear(1024, 1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.rand(5120, 1024), batch_size=256)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, batch in enumerate(loader, start=1):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch), 2 * batch)
        accelerator.backward(loss)
        optimizer.step()
        if step % 5 == 0:
            accelerator.log({"loss": loss.item()}, step=step)
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
