"""Hugging Face's Trainer: each row that it logs has what the devices did since the row before. Runs on CPU, without a download.

pip install accelmetrics transformers accelerate tensorboard
python examples/transformers_trainer.py [output folder] [reporters, separated by commas]
"""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from accelmetrics.integrations.transformers import MonitorCallback


class Counting(torch.utils.data.Dataset):
    """Texts that count: small, and learnt at once."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = (torch.arange(16) + index) % 50
        return {"input_ids": tokens, "labels": tokens}


def main(folder="output", reporters="tensorboard"):
    model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=50, n_positions=16))
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=20,
        logging_steps=5,
        per_device_train_batch_size=4,
        save_strategy="no",
        report_to=reporters.split(","),
    )
    trainer = Trainer(model, arguments, train_dataset=Counting())
    MonitorCallback(interval=0.1).attach(trainer)
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
