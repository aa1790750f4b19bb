"""What is typed at a terminal, as names of keys: ``a``, ``up``, ``enter``, ``f1``. The same for every terminal's way of sending them.

``curses`` knows the ways of the terminal that ``TERM`` names, which over ssh and in tmux is often another one than the keys come from.
"""

from __future__ import annotations

import codecs
import re

ESCAPE_SECONDS = 0.15
"""For how long the rest of a sequence is waited for: what is an Escape by itself is known only then."""
CONTROL = {
    **{"\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\b": "backspace"},
    **{chr(number): f"ctrl-{chr(number + 96)}" for number in range(1, 27) if chr(number) not in "\r\n\t\b"},
}
BY_LETTER = {
    **{"A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "Z": "backtab", "M": "enter"},
    **{"P": "f1", "Q": "f2", "R": "f3", "S": "f4"},
}
"""Ends of ``CSI`` and of ``SS3`` sequences; a keypad in application mode sends those too."""
BY_NUMBER = {
    **{"1": "home", "7": "home", "4": "end", "8": "end", "5": "pageup", "6": "pagedown", "2": "insert", "3": "delete"},
    **{str(code): f"f{number}" for number, code in enumerate((11, 12, 13, 14, 15, 17, 18, 19, 20, 21, 23, 24), 1)},
}
"""Numbers of ``CSI number ~``; rxvt and the old PuTTY have 7 and 8."""
KEYPAD = {**{chr(ord("p") + digit): str(digit) for digit in range(10)}, "k": "+", "m": "-", "n": ".", "o": "/", "j": "*"}
SEQUENCE = re.compile(r"\x1b(?:\[\[[A-E]|\[[0-?]*[ -/]*[@-Z\\-~]|O[0-9;]*.|[^\[O\x1b])", re.DOTALL)
"""A whole one: of Linux' console (``[[A`` is F1), ``CSI``, ``SS3``, and a key together with Alt."""
BEGUN = re.compile(r"\x1b(?:\[\[?|\[[0-?]*[ -/]*|O[0-9;]*)?$", re.DOTALL)
LINUX = {f"\x1b[[{letter}": f"f{number}" for number, letter in enumerate("ABCDE", 1)}


class KeyDecoder:
    """Makes names of keys out of bytes, however those are cut into pieces. What is no key that has a name is left out."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._rest = ""

    @property
    def waiting(self) -> bool:
        """Whether the end of a sequence is missing."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[str]:
        """Take what was typed; return the keys that are complete."""
        text, self._rest = self._rest + self._decoder.decode(data), ""
        keys = []
        while text:
            if text[0] != "\x1b":
                keys.append(CONTROL.get(text[0], text[0] if text[0].isprintable() else ""))
                text = text[1:]
            elif found := SEQUENCE.match(text):
                keys.append(_name(found[0]))
                text = text[found.end() :]
            elif BEGUN.match(text):
                self._rest = text
                break
            else:  # something that no sequence goes on with
                keys.append("escape" if text.startswith("\x1b\x1b") else "")
                text = text[1:]
        return [key for key in keys if key]

    def settle(self) -> list[str]:
        """Take it that nothing more belongs to what has come: an Escape by itself is a key, a sequence without an end is none."""
        rest, self._rest = self._rest, ""
        return ["escape"] if rest == "\x1b" else []


def _name(sequence: str) -> str:
    """Return the key of a whole sequence; Shift, Alt and Ctrl beside it make no difference. Empty for one that is not known."""
    if sequence in LINUX:
        return LINUX[sequence]
    if sequence.startswith("\x1b["):
        number, end = sequence[2:-1].partition(";")[0], sequence[-1]
        return BY_NUMBER.get(number, "") if end == "~" else BY_LETTER.get(end, "")
    if sequence.startswith("\x1bO"):
        return BY_LETTER.get(sequence[-1], KEYPAD.get(sequence[-1], ""))
    return ""
