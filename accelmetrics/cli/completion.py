"""``accelmetrics completion``: a shell's completion script, made by shtab."""

from __future__ import annotations

from argparse import Namespace

from accelmetrics.cli import options as arguments
from accelmetrics.cli.output import Stdout

SHELLS = ("bash", "zsh", "tcsh")
EXAMPLES = """\
  accelmetrics completion bash > ~/.local/share/bash-completion/completions/accelmetrics
  accelmetrics completion zsh > "${fpath[1]}/_accelmetrics"
  accelmetrics completion tcsh > ~/.accelmetrics.csh      and a line `source ~/.accelmetrics.csh` in ~/.tcshrc

It needs the extra: pip install 'accelmetrics[completion]'"""
OPTIONS: arguments.Groups = {
    "": {
        "shell": {"choices": SHELLS, "metavar": "|".join(SHELLS), "help": ", ".join(SHELLS)},
    },
}


def run(options: Namespace, out: Stdout) -> int:
    """Print the script."""
    from accelmetrics.cli.main import root_parser
    from accelmetrics.schemas.errors import require

    script: str = require("shtab", "completion").complete(root_parser(whole=True), options.shell)
    out.write(script.rstrip("\n") + "\n")
    return 0
