"""How a translation is looked for. Knows nothing of TensorFlow, so that flags are checked first."""

from dataclasses import dataclass, fields

from config import flag


@dataclass(frozen=True)
class Search:
    """Greedy, unless there is a beam or a draw. Raises ValueError, in a sentence."""

    beam: int = 1  # hypotheses kept at each step; 1 is greedy search
    length_penalty: float = 0.6  # how much beam search favours long translations, as GNMT does
    n_best: int = 1  # translations a line, best first, as "number TAB score TAB text"
    sample: bool = False  # draw each token at random, by the model's odds
    temperature: float = 1.0  # of --sample: below 1 the likely becomes likelier
    top_k: int = 0  # of --sample: only among the K likeliest; 0 for all
    top_p: float = 1.0  # of --sample: only among the likeliest that together have this share
    seed: int = 0  # of --sample: other draws

    def __post_init__(self):
        for name in ("beam", "n_best"):
            if getattr(self, name) < 1:
                raise ValueError(f"{flag(name)} {getattr(self, name)} is not at least 1")
        if self.n_best > self.beam:
            raise ValueError(f"--n-best {self.n_best} is more than --beam {self.beam} can find")
        if not 0 <= self.length_penalty < float("inf"):
            raise ValueError(f"--length-penalty {self.length_penalty} is not at least 0")
        if self.sample and self.beam > 1:
            raise ValueError("--sample draws one translation: it does not go with --beam")
        if not 0 < self.temperature < float("inf"):
            raise ValueError(f"--temperature {self.temperature} is not above 0")
        if not 0 <= self.top_k < 2**31:
            raise ValueError(f"--top-k {self.top_k} is not at least 0")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"--top-p {self.top_p} is not above 0 and at most 1")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"--seed {self.seed} is not at least 0 and below 2**31")
        for name in self.changed():
            if name in ("temperature", "top_k", "top_p", "seed") and not self.sample:
                raise ValueError(f"{flag(name)} goes with --sample")
            if name == "length_penalty" and self.beam == 1:
                raise ValueError("--length-penalty goes with --beam")

    def changed(self):
        """The fields that are not as they are by default, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {f.name: values[f.name] for f in fields(self) if values[f.name] != f.default}

    def __str__(self):
        if self.sample:
            return (
                f"sampled, temperature {self.temperature:g}, top-k {self.top_k}, top-p "
                f"{self.top_p:g}, seed {self.seed}"
            )
        if self.beam > 1:
            return f"beam {self.beam}, length penalty {self.length_penalty:g}"
        return "greedy"

    @property
    def suffix(self):
        """In names of files: all that makes a difference; greedy search has none."""
        parts = {name: value for name, value in self.changed().items() if name != "n_best"}
        return "".join(
            f"-{name.replace('_', '-')}" + ("" if value is True else f"{value:.12g}")
            for name, value in parts.items()
        )
