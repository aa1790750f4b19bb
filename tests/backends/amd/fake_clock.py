"""A clock for drivers under test."""


class FakeClock:
    """Time that passes when a test says so."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        raise NotImplementedError
