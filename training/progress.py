"""The progress bar of training, and the speed without the time that tracing takes."""

import time

from utils import progress_bar


class Progress:
    """One bar for a whole run, and the clocks of its speed, which start after the first step."""

    def __init__(self, step: int, disable: bool):
        self.bar = progress_bar(
            desc="tracing the train step", initial=step, unit="step", disable=disable
        )
        self.traced = False
        self.restart()

    def begin_epoch(self, description: str, total_steps: int) -> None:
        """Show which epoch it is, and how many steps the run has in total."""
        self.bar.total = total_steps
        self.bar.set_description(description, refresh=False)
        self.restart()

    def restart(self) -> None:
        """Restart the clocks of `tokens_per_second` and `seconds`."""
        self.started = self.measured_at = time.monotonic()
        self.tokens = 0

    def advance(self, tokens: int) -> None:
        """Count one update on a batch with this number of real tokens."""
        self.tokens += tokens
        self.bar.update()
        if not self.traced:
            self.traced = True
            self.restart()

    def tokens_per_second(self) -> float | None:
        """Return the speed since the last call; None if only the first step was made since then."""
        now, tokens = time.monotonic(), self.tokens
        seconds, self.measured_at, self.tokens = now - self.measured_at, now, 0
        return tokens / seconds if tokens else None

    def seconds(self) -> float:
        """Return the seconds since the clocks were restarted."""
        return time.monotonic() - self.started
