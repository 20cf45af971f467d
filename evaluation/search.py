"""Settings of the search for an output. Does not import TensorFlow."""

from dataclasses import dataclass, fields
from typing import Any

from utils import UserError, check_settings, flag, setting


@dataclass(frozen=True)
class Search:
    """Greedy search, beam search or sampling. Raises UserError if a value is invalid."""

    beam: int = setting(1, "hypotheses per sentence; 1 is greedy search", group="search")
    length_penalty: float = setting(
        0.6, "with --beam: exponent of the length penalty", low=0, high=float("inf")
    )
    n_best: int = setting(1, "with --beam: outputs per text, each with its line number and score")
    max_tokens: int | None = setting(
        None,
        "maximum tokens per output [twice those of its text plus 20; more if over 0.1 % of the "
        "training targets need it]",
        high=100_000,
    )
    sample: bool = setting(
        False, "sample each token; required by the flags below", group="sampling"
    )
    temperature: float = setting(1.0, "divides the logits", low=1e-3, high=float("inf"))
    top_k: int = setting(0, "sample from the K most likely tokens; 0 for all", low=0)
    top_p: float = setting(
        1.0, "sample from the most likely tokens with this total probability", low=1e-3
    )
    seed: int | None = setting(None, "random seed [drawn, and printed]", low=0)

    def __post_init__(self):
        if self.temperature == 0:
            raise UserError("--temperature 0 is greedy search: use --no-sample instead")
        check_settings(self)
        if self.n_best > self.beam:
            raise UserError(f"--n-best {self.n_best}: needs --beam {self.n_best} or more")
        if self.top_p > 1:
            raise UserError(f"--top-p {self.top_p}: must be at most 1")
        if self.sample and self.beam > 1:
            raise UserError("--sample and --beam exclude each other: remove one of them")
        for name in self.changed():
            if name in ("temperature", "top_k", "top_p", "seed") and not self.sample:
                raise UserError(f"{flag(name)} has no effect without --sample")
            if name == "length_penalty" and self.beam == 1:
                raise UserError("--length-penalty has no effect without --beam")

    def changed(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        values = {field: getattr(self, field.name) for field in fields(self)}
        return {f.name: value for f, value in values.items() if value != f.default}

    @property
    def suffix(self) -> str:
        """Part of file names: the settings that change a translation; empty for greedy search."""
        return "".join(
            f"-{name.replace('_', '-')}" + ("" if value is True else f"{value:.12g}")
            for name, value in self.changed().items()
            if name != "n_best"
        )

    def __str__(self) -> str:
        return self.suffix.removeprefix("-") or "greedy"


@dataclass(frozen=True)
class Sampling(Search):
    """A Search that samples by default, for generate.py."""

    sample: bool = setting(True, "sample each token, or take the most likely", group="sampling")
    temperature: float = setting(0.8, "divides the logits", low=1e-3, high=float("inf"))
