"""``watch --fleet``: a line a node of a Prometheus or of a file of hosts, the worst first; Enter opens one of a file, as ``--url`` does."""

from __future__ import annotations

import signal
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace

from accelmetrics.cli.monitoring import Stop
from accelmetrics.cli.output import Stdout
from accelmetrics.cli.terminal import Screen, screen_size
from accelmetrics.cli.watch_controls import chosen_by
from accelmetrics.cli.watch_plain import LOOK, LineInput, now
from accelmetrics.cli.watch_prometheus import INTERVAL, LARGEST_ANSWER, PATIENCE, QUERY, read_nodes
from accelmetrics.cli.watch_remote import Access, NodePolls, NodeState, RemoteSource, parse_address
from accelmetrics.cli.watch_screen import ScreenProgram, WatchScreen
from accelmetrics.views.device_view import MARKS, WarningLevels, duration
from accelmetrics.views.node_summary import NodeAnswer, NodeSummary
from accelmetrics.views.terminal.fleet import fleet_picture, node_note
from accelmetrics.views.terminal.picture import Picture
from accelmetrics.visibility.nodes import HostsFile

SUMMARY = "/api/summary"
SHORTEST = 1.0
"""Seconds between two rounds at least: that often nodes read."""


class FleetSource:
    """The nodes of a Prometheus, or of a file of hosts that is read again when it has changed, and how each stands.

    Args:
        options: Of the command.

    Attributes:
        answers: How the nodes stand.
        opens: Whether a node can be opened: those of a file are asked themselves.

    Raises:
        UsageError: It is neither an address nor a file.
        InvalidOptionError: A file cannot be read.
    """

    def __init__(self, options: Namespace) -> None:
        self._options = options
        self._states: Mapping[str, NodeState[Sequence[NodeAnswer]]] = {}
        self._polls: NodePolls[Sequence[NodeAnswer]]
        self.opens = "://" not in options.fleet
        if self.opens:
            self._nodes = HostsFile(options.fleet).nodes
            self.answers = [NodeAnswer(node.target) for node in self._nodes()]
            interval = max(SHORTEST, options.interval)
            self._polls = NodePolls(self._nodes, Access.of(options), SUMMARY, interval, _read)
        else:
            prometheus, password = parse_address(options.fleet, "--fleet", "a Prometheus, such as http://prometheus:9090")
            self.answers = [NodeAnswer(prometheus.target)]
            access = replace(Access.of(options, password), patience=PATIENCE, largest=LARGEST_ANSWER)
            self._polls = NodePolls(lambda: [prometheus], access, QUERY, max(INTERVAL, options.interval), read_nodes)

    def look(self) -> bool:
        """Take what is new; return whether there is something."""
        states, before = self._polls.states, self._states
        if states is before:
            return False
        self._states = states
        self.answers = [answer for state in states.values() for answer in _answers(state)]
        return True

    def opened(self, name: str, levels: WarningLevels) -> RemoteSource | None:
        """Return the source of one node; None where it is in the file no more."""
        node = next((node for node in self._nodes() if node.target == name), None)
        return None if node is None else RemoteSource(node, Access.of(self._options), self._options.interval, levels)

    def close(self) -> None:
        """Ask no more."""
        self._polls.close()


def _read(text: str) -> list[NodeAnswer]:
    return [NodeAnswer("", NodeSummary.from_json(text))]


def _answers(state: NodeState[Sequence[NodeAnswer]]) -> list[NodeAnswer]:
    """Return the last answer; nothing of it where there is none now."""
    name = state.node.target
    if state.failure:
        return [NodeAnswer(name, failure=f"no answer: for {duration(max(0.0, time.time() - state.since))}: {state.failure}")]
    age = time.monotonic() - state.taken
    return [answer._replace(name=answer.name or name, age_seconds=age) for answer in state.content or ()]


class FleetScreen(ScreenProgram):
    """The fleet on a terminal, and the node of it that is opened.

    Args:
        options: Of the command.
        out: The terminal.
        descriptor: Its own.
        stopped: Asks for its end.
        fleet: The nodes.
        levels: From where on values of an opened node are warnings.
    """

    def __init__(self, options: Namespace, out: Stdout, descriptor: int, stopped: Stop, fleet: FleetSource, levels: WarningLevels) -> None:
        super().__init__(options, out, descriptor, stopped)
        self.choices = replace(self.choices, pane="nodes")
        self._fleet = fleet
        self._levels = levels
        self._shown = fleet.answers
        self._picture: Picture | None = None
        self._node: tuple[RemoteSource, WatchScreen] | None = None

    def look(self) -> bool:
        """Take what is new; return whether there is another picture to draw."""
        news = self._fleet.look() and not self.choices.paused
        if news:
            self._shown = self._fleet.answers
        if self._node is None:
            return news
        screen = self._node[1]
        changed, screen.changed = screen.look() or screen.changed, False
        return changed

    def draw(self, screen: Screen) -> None:
        """Put the picture of what there is now on the screen."""
        if self._node is not None:
            self._node[1].draw(screen)
            return
        size = screen_size(self.descriptor)
        self._picture = fleet_picture(self._shown, replace(self.choices, message=self.said), size, self.style)
        self.choices = replace(self._picture.choices, message="")
        screen.show(self._picture.ansi(self.style), self._picture.place, size)

    def press(self, key: str) -> None:
        """Do what a key asks for."""
        if self._node is not None:
            if key == "escape" and self._node[1].at_rest:
                self.leave()
            else:
                self._node[1].hush()
                self._node[1].press(key)
        elif self.choices.input is None and key in ("q", "Q", "f10"):
            self.stopped.ask(signal.SIGINT)
        elif self.choices.input is None and not self.choices.overlay and key == "enter" and self._fleet.opens:
            self._open()
        elif self._picture is not None:
            self.choices = chosen_by(key, replace(self._picture, choices=self.choices), ())
            if self.choices.input is not None and self.choices.input.problem:
                self.say(self.choices.input.problem)

    def leave(self) -> None:
        """Go back from an opened node to the fleet."""
        if self._node is not None:
            source, screen = self._node
            screen.leave()
            source.close()
            self._node = None

    def say(self, text: str) -> None:
        """Show a message for a while."""
        super().say(text)
        if self._node is not None:
            self._node[1].say(text)

    def _open(self) -> None:
        name = self.choices.node
        source = self._fleet.opened(name, self._levels) if name else None
        if source is None:
            self.say("there is no such node any more" if name else "there is no node to open")
            return
        screen = WatchScreen(self.options, self.out, self.descriptor, self.stopped, source)
        screen.saved = self.saved
        self._node = source, screen


def show_fleet(fleet: FleetSource, out: Stdout, stopped: Stop) -> None:
    """Print a line for each change until stopped, and one for each node when Enter is pressed; ``q`` and Enter end it."""
    typed = LineInput()
    told: dict[str, object] = {}
    while not stopped.signal:
        if fleet.look():
            for answer in fleet.answers:
                if (stand := _stand(answer)) != told.get(answer.name):
                    out.show(f"{now()} {node_words(answer)}\n")
                told[answer.name] = stand
            for name in told.keys() - {answer.name for answer in fleet.answers}:
                out.show(f"{now()} {name}: no longer listed\n")
                del told[name]
        for line in typed.lines(LOOK):
            if line.strip().lower() == "q":
                stopped.ask(signal.SIGINT)
            else:
                out.show("".join(f"{node_words(answer)}\n" for answer in fleet.answers))


def _stand(answer: NodeAnswer) -> object:
    """Return how a node stands: what is told when it is another thing."""
    summary = answer.summary
    if summary is None:
        return bool(answer.failure)
    worst = summary.worst
    return answer.state, worst and worst.key, tuple(summary.kinds.items()), summary.findings, summary.lost, summary.failed


def node_words(answer: NodeAnswer) -> str:
    """Say a node in a sentence."""
    summary = answer.summary
    had = [] if summary is None else [", ".join(f"{count} {kind}" for kind, count in summary.kinds.items()) or "no device"]
    words = ", ".join(filter(None, [*had, node_note(answer)]))
    return " ".join(filter(None, (MARKS[answer.state], f"{answer.name}: {words}")))
