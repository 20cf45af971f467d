"""The progress bar of training, and the speed without the time that tracing takes."""

import contextlib
import sys
import time
from collections.abc import Iterator

from tqdm import tqdm


class Progress:
    """One bar for a whole run, and the clocks of its speed.

    The first step traces the graph; it and all other tracing are excluded from the speed and from
    the estimated time left.
    """

    def __init__(self, step: int, disable: bool):
        self.bar = tqdm(
            initial=step,
            unit="step",
            leave=False,
            mininterval=0.5 if sys.stderr.isatty() else 30,
            smoothing=0,  # estimate the time left from the mean time per step
            disable=disable,
        )
        self.traced = False
        self.description = ""
        self.restart()

    def begin_epoch(self, description: str, total_steps: int) -> None:
        """Show which epoch it is, and how many steps the run has in total."""
        self.bar.total, self.description = total_steps, description
        self.bar.set_description(description if self.traced else "tracing the train step")
        self.restart()

    def restart(self) -> None:
        """Restart the clocks of `tokens_per_second` and `seconds`."""
        self.started = self.measured_at = time.monotonic()
        self.tokens = 0

    def advance(self, step: int, tokens: int) -> None:
        """Count one update, number `step`, on a batch with this number of real tokens."""
        self.tokens += tokens
        if not self.traced:
            self.exclude_time_since(self.measured_at)
            self.traced, self.tokens, self.bar.initial = True, 0, step
        self.bar.update()

    @contextlib.contextmanager
    def tracing(self, graphs: str) -> Iterator[None]:
        """Show that graphs are being traced, and exclude the time that this takes."""
        began = time.monotonic()
        self.bar.set_description(f"tracing {graphs}")
        yield
        self.exclude_time_since(began)

    def exclude_time_since(self, began: float) -> None:
        """Exclude the time since `began` from the speed and from the estimated time left."""
        seconds = time.monotonic() - began
        self.started += seconds
        self.measured_at += seconds
        if not self.bar.disable:
            self.bar.start_t += seconds
        self.bar.set_description(self.description)

    def tokens_per_second(self) -> float | None:
        """Return the speed since the last call; None if only the first step was made since then."""
        now, tokens = time.monotonic(), self.tokens
        seconds, self.measured_at, self.tokens = now - self.measured_at, now, 0
        return tokens / seconds if tokens else None

    def seconds(self) -> float:
        """Return the seconds since the clocks were restarted."""
        return time.monotonic() - self.started

    def show(self, text: str) -> None:
        """Show a text at the end of the bar."""
        self.bar.set_postfix_str(text, refresh=False)

    def close(self) -> None:
        """Remove the bar."""
        self.bar.close()
