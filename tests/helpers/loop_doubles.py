"""A robot, a session and a clock for control loops that wait for nothing."""


class Clock:
    """Time that passes only when someone sleeps or works."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.slept_s: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.slept_s.append(duration_s)
        self.now_s += duration_s


class Robot:
    """Counts what it is asked for; each call takes the time that the test says."""

    def __init__(self, clock: Clock, *, read_s: float = 0.001, apply_s: float = 0.001) -> None:
        self.clock = clock
        self.read_s = read_s
        self.apply_s = apply_s
        self.stalls: dict[int, float] = {}
        self.read_at_s: list[float] = []
        self.applied: list[object] = []

    def read(self) -> int:
        self.read_at_s.append(self.clock.now_s)
        self.clock.now_s += self.read_s + self.stalls.get(len(self.read_at_s) - 1, 0.0)
        return len(self.read_at_s)

    def apply(self, action: object) -> None:
        self.clock.now_s += self.apply_s
        self.applied.append(action)


class Doubler:
    """A session that takes two milliseconds."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def step(self, observation: int) -> int:
        self.clock.now_s += 0.002
        return 2 * observation
