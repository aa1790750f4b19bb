"""A stand-in for ``rocm-smi``, as a real command on ``PATH``, and outputs in the formats of its releases.

stand_in = RocmSmiStandIn(tmp_path)
monkeypatch.setenv("PATH", stand_in.path)
stand_in.behave(output("radeon_6_2"), delay=0.1)        # switchable while the program runs
stand_in.calls                                          # how it was called
"""

import json
from pathlib import Path
from typing import Any, Literal

from tests.simulators.commands import ScriptedCommand

HERE = Path(__file__).parent
OUTPUTS = tuple(sorted(path.stem for path in (HERE / "outputs").glob("*.json")))
Mode = Literal["normal", "hang", "held", "endless"]


def output(name: str) -> str:
    """What some release prints for some machine."""
    return (HERE / "outputs" / f"{name}.json").read_text(encoding="utf-8")


def cards(name: str) -> dict[str, dict[str, str]]:
    """The same, as a dictionary to change."""
    parsed: dict[str, dict[str, str]] = json.loads(output(name))
    return parsed


class RocmSmiStandIn(ScriptedCommand):
    """The command in a directory of its own.

    Args:
        directory: Where to put it.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, (HERE / "command.py").read_text(encoding="utf-8"), "rocm-smi")
        self.behave("{}")

    def behave(
        self,
        output: str,
        *,
        all_output: str | None = None,
        errors: str = "",
        status: int = 0,
        delay: float = 0.0,
        mode: Mode = "normal",
        unknown_flags: tuple[str, ...] = (),
        crashing_flags: tuple[str, ...] = (),
    ) -> None:
        """Change what the command does from its next call on.

        Args:
            output: What it prints.
            all_output: What it prints when called with ``-a``, if that is something else.
            errors: What it prints on standard error.
            status: Its exit status.
            delay: Seconds before it prints anything.
            mode: ``hang`` (with two children, one in a session of its own), ``held`` (a child keeps the output open),
                ``endless`` (prints without end), or none of these.
            unknown_flags: Flags that it refuses as an older release does.
            crashing_flags: Flags on which it aborts, as a C++ library does that throws.
        """
        said = {"output": output, "all_output": all_output, "errors": errors, "status": status, "delay": delay, "mode": mode}
        self.scripted(said | {"unknown_flags": unknown_flags, "crashing_flags": crashing_flags})

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Every call so far: ``flags``, ``pid``, ``cwd``, ``environment``, ``stdin``."""
        return [entry for entry in self.noted() if "flags" in entry]

    @property
    def children(self) -> list[int]:
        """Process ids of the children that it left behind."""
        return [entry["child"] for entry in self.noted() if "child" in entry]
