"""Compare a result with an independent one, and name the mistake that explains a difference."""

from collections.abc import Mapping

import numpy as np


class Mistake(AssertionError):
    """A difference that a typical mistake explains."""


def expect(actual, right, mistakes: Mapping | None = None, rtol=1e-5, atol=1e-5) -> None:
    """Assert that `actual` equals `right`, or raise Mistake with the sentence that tells why not.

    mistakes: by sentence, the value to which a mistake leads, or whether it was made, a bool.
    Raises AssertionError with the first difference if none of them explains it. Numbers do not
    equal booleans.
    """
    __tracebackhide__ = True
    actual, right = np.asarray(actual), np.asarray(right)
    if same(actual, right, rtol, atol):
        return
    for sentence, value in (mistakes or {}).items():
        made = isinstance(value, bool | np.bool_) and bool(value)
        if made or same(actual, np.asarray(value), max(rtol, 1e-3), atol):
            raise Mistake(sentence)
    raise AssertionError(difference(actual, right, rtol, atol))


def same(one: np.ndarray, other: np.ndarray, rtol: float, atol: float) -> bool:
    """Return whether two arrays have the same shape and values."""
    alike = one.shape == other.shape and (one.dtype == bool) == (other.dtype == bool)
    return alike and np.allclose(one, other, rtol, atol)


def difference(actual: np.ndarray, right: np.ndarray, rtol: float, atol: float) -> str:
    """Describe how an array differs from the right one."""
    if actual.shape != right.shape:
        return f"the shape is {actual.shape}, and should be {right.shape}"
    if (actual.dtype == bool) != (right.dtype == bool):
        return f"the values are {actual.dtype}, and should be {right.dtype}"
    wrong = ~np.isclose(actual, right, rtol, atol)
    place = tuple(np.argwhere(wrong)[0].tolist())
    text = f"{wrong.sum()} of {wrong.size} values are wrong"
    return f"{text}, the first at {list(place)}: {actual[place]:.6g} instead of {right[place]:.6g}"
