"""Lightning: each row that the trainer logs has one beside it of what the devices did meanwhile. Runs on CPU, without a download.

pip install accelmetrics lightning
python examples/lightning_trainer.py [output folder]

Without the callback, ACCELMETRICS_LIGHTNING=1 does the same.
"""

import sys

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger

from accelmetrics.integrations.lightning import DeviceMonitor


class Doubling(lightning.LightningModule):
    """Learns to double numbers."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1024, 1024)

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.mse_loss(self.layer(batch), 2 * batch)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(folder="output"):
    data = torch.utils.data.DataLoader(torch.rand(5120, 1024), batch_size=256)
    trainer = lightning.Trainer(
        max_epochs=1,
        log_every_n_steps=5,
        logger=CSVLogger(folder),
        callbacks=[DeviceMonitor(interval=0.1)],
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Doubling(), data)


if __name__ == "__main__":
    main(*sys.argv[1:])
