"""torchtune: each row that a recipe logs has what the devices did since the row before. Runs on CPU, without a download.

pip install accelmetrics torchtune torchao==0.14.1
python examples/torchtune_recipe.py [output folder] [recipe] [option=value ...]

It makes a small model and runs `tune run full_finetune_single_device --config examples/torchtune_recipe.yaml` on it.
"""

import runpy
import sys
from pathlib import Path

import torch
import torchtune
from torchtune.models.llama2 import llama2

RECIPES = Path(torchtune.__file__).parents[1] / "recipes"


def model():
    return llama2(vocab_size=50, num_layers=2, num_heads=4, num_kv_heads=4, embed_dim=256, max_seq_len=64)


class Tokenizer:
    pad_id = 0


class Counting(torch.utils.data.Dataset):
    """Texts that count."""

    def __init__(self, tokenizer):
        pass

    def __len__(self):
        return 24

    def __getitem__(self, index):
        tokens = [1 + (place + index) % 49 for place in range(64)]
        return {"tokens": tokens, "labels": tokens}


def main(folder="output", recipe="full_finetune_single_device", *options):
    start = Path(folder) / "start"
    if not start.exists():
        start.mkdir(parents=True)
        torch.manual_seed(0)
        torch.save(model().state_dict(), start / "model.pt")
    paths = [f"output_dir={folder}/output", f"checkpointer.checkpoint_dir={start}"]
    sys.argv = [recipe, "--config", str(Path(__file__).with_suffix(".yaml")), *paths, *options]
    runpy.run_path(str(RECIPES / f"{recipe}.py"), run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
