"""Steps that programs logged, as series for graphs."""

from math import nan

from accelmetrics.schemas.record import Step
from accelmetrics.views.trails import TrainingSeries

SECOND = 10**9


def test_numbers_are_found_under_all_names_that_programs_give_them() -> None:
    """Names of trackers and frameworks are those of documentation; an evaluation's loss is not the training's."""
    steps = [
        Step(SECOND, 1, {"train/loss": 2.5, "lr": 3e-4, "eval/loss": 9.0, "tokens": 4096}, 0, "node-1"),
        Step(2 * SECOND, 2, {"eval/loss": 9.0}, 0, "node-1"),
        Step(3 * SECOND, 3, {"training_loss": 2, "gradient_norm": 0.5, "step_seconds": 0.25}, 0, "node-1"),
    ]
    assert list(TrainingSeries().add(steps)) == [
        ("node-1", SECOND, {"loss": 2.5, "learning_rate": 3e-4}),
        ("node-1", 3 * SECOND, {"loss": 2.0, "grad_norm": 0.5, "step_seconds": 0.25}),
    ]


def test_a_number_that_is_not_finite_is_missing_and_not_left_out() -> None:
    """A graph has a gap there; other values of the step stay."""
    steps = [Step(SECOND, 1, {"loss": nan, "tokens_per_second": nan, "lr": 0.1, "step_seconds": nan}, None, "")]
    assert list(TrainingSeries().add(steps)) == [
        ("", SECOND, {"loss": None, "learning_rate": 0.1, "step_seconds": None, "tokens_per_second": None})
    ]


def test_rates_of_the_processes_of_a_program_add_up() -> None:
    """Ranks work side by side; one that has ended is not counted for ever, and another program is another series."""
    series = TrainingSeries()

    def rate(second: float, rank: int | None, value: float, node: str = "node-1") -> object:
        step = Step(int(second * SECOND), None, {"tokens_per_second": value, "step_seconds": 1.0, "loss": value}, rank, node)
        [(program, _, values)] = series.add([step])
        assert program == node
        assert values["loss"] == value
        return values["tokens_per_second"]

    assert rate(1.0, 0, 100.0) == 100.0
    assert rate(1.1, 1, 50.0) == 150.0
    assert rate(2.0, 0, 110.0) == 160.0
    assert rate(2.1, 0, 7.0, "node-2") == 7.0
    assert rate(20.0, 0, 120.0) == 120.0


def test_programs_that_have_ended_take_no_memory() -> None:
    """Where a machine is watched for months."""
    series = TrainingSeries()
    for number in range(100):
        list(series.add([Step(100 * number * SECOND, None, {"tokens_per_second": 1.0}, 0, f"pid {number} of node-1")]))
    assert len(series._rates) == 1


def test_a_step_may_have_any_length() -> None:
    """A recording may say so."""
    steps = [Step(SECOND, None, {"tokens_per_second": 1.0, "step_seconds": 1e308}, 0, "")]
    assert list(TrainingSeries().add(steps)) == [("", SECOND, {"step_seconds": 1e308, "tokens_per_second": 1.0})]
