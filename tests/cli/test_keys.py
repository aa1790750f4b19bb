"""Keys as terminals send them, whole and in pieces."""

from __future__ import annotations

import pytest

from accelmetrics.cli.terminal import Background, KeyDecoder, MouseReport

SENT = {
    "up": ("\x1b[A", "\x1bOA", "\x1b[1;5A", "\x1b[1;2A"),
    "down": ("\x1b[B", "\x1bOB"),
    "right": ("\x1b[C", "\x1bOC"),
    "left": ("\x1b[D", "\x1bOD"),
    "home": ("\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~", "\x1b[1;5H"),
    "end": ("\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~"),
    "pageup": ("\x1b[5~", "\x1b[5;5~"),
    "pagedown": ("\x1b[6~",),
    "insert": ("\x1b[2~",),
    "delete": ("\x1b[3~",),
    "f1": ("\x1bOP", "\x1b[11~", "\x1b[[A", "\x1b[1;2P"),
    "f5": ("\x1b[15~", "\x1b[[E"),
    "f10": ("\x1b[21~",),
    "backtab": ("\x1b[Z",),
    "enter": ("\r", "\n", "\x1bOM"),
    "tab": ("\t",),
    "backspace": ("\x7f", "\b"),
    "ctrl-u": ("\x15",),
    "q": ("q",),
    "S": ("S",),
    "é": ("é",),
    "卡": ("卡",),
    "5": ("5", "\x1bOu"),
}
NO_KEYS = ("\x1bq", "\x1b[I", "\x1b[200~", "\x1b[?1;2c", "\x1b[<0;3;4m", "\x1b[<2;3;4M", "\x1b[<35;3;4M", "\x1b]", "\x00", "\x9b")
OTHER_MICE = ("\x1b[M !!", "\x1b[M AA", "\x1b[M q\r", "\x1b[32;10;10M")
"""Reports in the forms that were not asked for."""
MICE = {
    "\x1b[<0;3;4M": MouseReport("click", 3, 2),
    "\x1b[<4;3;4M": MouseReport("click", 3, 2),
    "\x1b[<64;200;1M": MouseReport("up", 0, 199),
    "\x1b[<65;1;99M": MouseReport("down", 98, 0),
    "\x1b[<0;0;0M": MouseReport("click", 0, 0),
}


@pytest.mark.parametrize(("name", "sequence"), [(name, sequence) for name, sequences in SENT.items() for sequence in sequences])
def test_a_key_whole_in_pieces_and_among_others(name: str, sequence: str) -> None:
    """However the bytes are cut."""
    data = sequence.encode()
    assert KeyDecoder().feed(data) == [name]
    assert KeyDecoder().feed(b"x" + data + b"y") == ["x", name, "y"]
    pieces = KeyDecoder()
    found = [key for number in range(len(data)) for key in pieces.feed(data[number : number + 1])]
    assert (found, pieces.waiting) == ([name], False)


@pytest.mark.parametrize(("sequence", "report"), MICE.items())
def test_a_report_of_the_mouse_whole_and_in_pieces(sequence: str, report: MouseReport) -> None:
    """Places are counted from 0; a key that is held down with it makes no difference."""
    data = sequence.encode()
    assert KeyDecoder().feed(b"x" + data + b"y") == ["x", report, "y"]
    pieces = KeyDecoder()
    assert [key for number in range(len(data)) for key in pieces.feed(data[number : number + 1])] == [report]


@pytest.mark.parametrize("sequence", [*NO_KEYS, *OTHER_MICE])
def test_what_is_no_key_is_left_out_whole(sequence: str) -> None:
    """Alt, reports of the terminal, the mouse: the letters in them are no keys."""
    assert KeyDecoder().feed(sequence.encode() + b"j") == ["j"]


def test_an_escape_by_itself_is_a_key_when_nothing_follows() -> None:
    """Twice at once, too; the beginning of another sequence is none."""
    keys = KeyDecoder()
    assert (keys.feed(b"\x1b"), keys.waiting, keys.settle(), keys.waiting) == ([], True, ["escape"], False)
    assert (keys.feed(b"\x1b\x1b"), keys.settle()) == (["escape"], ["escape"])
    assert (keys.feed(b"\x1b["), keys.settle(), keys.feed(b"A")) == ([], [], ["A"])


def test_bytes_that_are_no_text_are_no_keys() -> None:
    """And take nothing else with them."""
    assert KeyDecoder().feed(b"\xff\xfea") == ["a"]


@pytest.mark.parametrize(
    ("answer", "background"),
    [
        (b"\x1b]11;rgb:ffff/8080/0000\x1b\\", Background(1.0, 0x8080 / 0xFFFF, 0.0)),
        (b"\x1b]11;rgb:ff/00/ff\x07", Background(1.0, 0.0, 1.0)),
        (b"\x1b]11;rgba:0000/0000/0000/ffff\x07", Background(0.0, 0.0, 0.0)),
    ],
)
def test_the_answer_about_the_background_is_no_key(answer: bytes, background: Background) -> None:
    assert KeyDecoder().feed(b"x" + answer + b"y") == ["x", background, "y"]
    pieces = KeyDecoder()
    assert [key for at in range(len(answer)) for key in pieces.feed(answer[at : at + 1])] == [background]


@pytest.mark.parametrize("other", [b"\x1b]11;none\x07", b"\x1b]52;c;Zm9v\x1b\\"])
def test_other_answers_of_a_terminal_are_left_out(other: bytes) -> None:
    assert KeyDecoder().feed(b"x" + other + b"y") == ["x", "y"]
