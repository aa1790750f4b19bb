"""``accelmetrics completion``: a shell's completion script. shtab makes it; this file adds the completion of lists and metric keys."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence

from accelmetrics.cli import options as arguments
from accelmetrics.cli.output import Stdout

SHELLS = ("bash", "zsh", "tcsh")
EXAMPLES = """\
  accelmetrics completion bash \\
      > ~/.local/share/bash-completion/completions/accelmetrics
  accelmetrics completion zsh > "${fpath[1]}/_accelmetrics"
  accelmetrics completion tcsh > ~/.accelmetrics.csh
      and a line `source ~/.accelmetrics.csh` in ~/.tcshrc

The script completes commands, options and their values: metrics and backends,
also in lists (`--metrics core,gpu.3.te`), exporters, dialects, presets, files.
In tcsh it completes presets only, not metrics. It knows the plug-ins that were
installed when it was made.

It needs the extra: pip install 'accelmetrics[completion]'"""
OPTIONS: arguments.Groups = {
    "": {
        "shell": {"choices": SHELLS, "metavar": "|".join(SHELLS), "help": ", ".join(SHELLS)},
    },
}
LISTS = {"metrics": "metrics", "key": "keys", "backends": "backends", "rules": "rules"}
NAMES = {"backend": "backend", "exporters": "exporters", "keys": "dialects", "amd_source": "sources of AMD"}
"""Set of words (see :func:`_known`) by the option's name in the namespace: ``LISTS`` take several words, ``NAMES`` one."""
PATHS = ("FILE", "DIRECTORY", "PATH")
"""Metavariables of options that take a file or a directory."""

_PLAIN = re.compile(r"[\w.*+-]+", re.ASCII)
"""A word that needs no quotes."""
_PLACEHOLDER = re.compile(r"\{\w+\}")

# Completes the last item of a list. The words have keys of device 0 only, which keeps the script small: gpu.3.temp and gpu.*.temp are
# completed from gpu.0.temp. A minus sign before an item excludes it.
BASH = """
_accelmetrics_{name}() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before stem="" line
  before="${{word%"${{word##*,}}"}}"; word="${{word##*,}}"
  if [[ $word == -* ]]; then before+=-; word="${{word#-}}"; fi
  if [[ $word =~ ^([a-z]+)\\.([0-9]+|\\*)\\.(.*)$ ]]; then
    before+="${{BASH_REMATCH[1]}}.${{BASH_REMATCH[2]}}."; stem="${{BASH_REMATCH[1]}}.0."; word="$stem${{BASH_REMATCH[3]}}"
  fi
  while IFS= read -r line; do printf '%s\\n' "$before${{line#"$stem"}}"; done < <(compgen -W '{words}' -- "$word")
}}
"""
# bash splits --option=value at the equals sign, which shtab does not expect. So the value is joined to the words as --option value.
BASH_ROOT = """
_accelmetrics() {
  local -a words=()
  local place
  for ((place = 0; place <= COMP_CWORD; place++)); do
    if [[ ${COMP_WORDS[place]} != "=" || ${COMP_WORDS[place - 1]} != --* ]]; then
      words+=("${COMP_WORDS[place]}")
    elif ((place == COMP_CWORD)); then
      words+=("")
    fi
  done
  COMP_WORDS=("${words[@]}") COMP_CWORD=$((${#words[@]} - 1))
  _shtab_accelmetrics
}
"""
ZSH = """
_accelmetrics_{name}() {{
  local kind
  local -a known=({words})
  compset -P '*,'; compset -P '-'
  for kind in ${{(u)${{(M)known:#*.0.*}}%%.*}}; do
    if compset -P "$kind.(<->|\\\\*)."; then
      compadd -- ${{${{(M)known:#$kind.0.*}}#$kind.0.}}
      return
    fi
  done
  compadd -- $known
}}
"""


def run(options: Namespace, out: Stdout) -> int:
    """Print the completion script.

    Raises:
        MissingDependencyError: shtab is not installed.
    """
    from accelmetrics.cli.main import root_parser
    from accelmetrics.schemas.errors import require
    from accelmetrics.schemas.selection import PRESETS

    shtab = require("shtab", "completion")
    root = root_parser(whole=True)
    words = _known()
    parsers = [parser for commands in root._actions if isinstance(commands.choices, dict) for parser in commands.choices.values()]
    for action in (action for parser in parsers for action in parser._actions):
        # Colons and brackets are syntax of zsh's _arguments.
        action.metavar = re.sub(r"[:[].*", "", action.metavar) if isinstance(action.metavar, str) else None
        if action.dest in LISTS:
            function = f"_accelmetrics_{LISTS[action.dest]}"
            plain = {"metrics": PRESETS, "backends": words["backends"], "rules": words["rules"]}.get(action.dest)
            action.complete = {"bash": function, "zsh": function, "tcsh": plain and f"({' '.join(plain)})"}
        elif action.dest in NAMES:
            action.choices = words[NAMES[action.dest]]
        elif action.metavar in PATHS:
            action.complete = shtab.FILE if action.metavar == "FILE" else shtab.DIRECTORY
    functions = {
        "bash": "".join(BASH.format(name=name, words=" ".join(words[name])) for name in LISTS.values()) + BASH_ROOT,
        "zsh": "".join(ZSH.format(name=name, words=shlex.join(words[name])) for name in LISTS.values()),
    }
    script: str = shtab.complete(root, options.shell, preamble=functions)
    out.write(script.replace("-F _shtab_accelmetrics", "-F _accelmetrics").rstrip("\n") + "\n")
    return 0


def _known() -> Mapping[str, Sequence[str]]:
    """Return the words to complete, by the name of their set. Words that would need quotes in a shell are left out."""
    from accelmetrics.backends import amd, registry as backends
    from accelmetrics.dialects import registry as dialects
    from accelmetrics.exporters import registry as exporters
    from accelmetrics.monitor import rules
    from accelmetrics.schemas.selection import PRESETS

    found: Mapping[str, Iterable[str]] = {
        "metrics": [*PRESETS, *_spellings("*")],
        "keys": _spellings("0"),
        "backend": backends.names(),
        "backends": [*backends.GROUPS, *backends.names()],
        "rules": [rules.DEFAULT, rules.NONE, *rules.names()],
        "exporters": exporters.names(),
        "dialects": dialects.names(),
        "sources of AMD": amd.SOURCES,
    }
    return {name: [word for word in dict.fromkeys(words) if _PLAIN.fullmatch(word)] for name, words in found.items()}


def _spellings(instance: str) -> Iterator[str]:
    """Yield the names and keys of all metrics. A device's key is that of the first device of each kind.

    Args:
        instance: Text in place of a disk, a link or a CPU in a key.
    """
    from accelmetrics.schemas.catalogue import given_by, rows
    from accelmetrics.schemas.coverage import KINDS
    from accelmetrics.schemas.metric import ANY_KIND

    for row in rows():
        kinds = {KINDS[backend] for backend in given_by().get(row.key, ())} if ANY_KIND in row.key else {""}
        spelt = [row.name] * bool(row.device_part)
        for spelling in (row.key, *row.aliases):
            first = spelling.replace(".{i}.", ".0.", 1) if row.device_part else spelling
            spelt += [first.replace(ANY_KIND, kind) for kind in sorted(kinds)]
        yield from (_PLACEHOLDER.sub(instance, one) for one in spelt)
