"""What the jaxpr of a function shows: which result is the loss, and whether it computes a gradient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jax.extend.core import Literal


def differentiates(jaxpr: Any) -> bool:
    """Whether a function computes a gradient, also where JAX knew its jaxpr already, so that it did not run."""
    for equation in jaxpr.eqns:
        if "transpose" in str(equation.source_info.name_stack):
            return True
        inner = (getattr(each, "jaxpr", each) for each in equation.params.values())
        if any(hasattr(each, "eqns") and differentiates(each) for each in inner):
            return True
    return False


def follows_from(jaxpr: Any, mean: int, results: Iterable[int]) -> int | None:
    """The result that is computed from the losses of rows alone, and not from other inputs.

    Args:
        jaxpr: The jaxpr of a function.
        mean: Number of the result that is the mean of these losses.
        results: Numbers of the results that may be a loss.
    """
    made = {out: equation for equation in jaxpr.eqns for out in equation.outvars}

    def sources(var: Any) -> list[Any]:
        return [each for each in made[var].invars if not isinstance(each, Literal)] if var in made else []

    rows = [jaxpr.outvars[mean]]
    while rows and all(not getattr(var.aval, "shape", ()) for var in rows):
        rows = [each for var in rows for each in sources(var)]
    ends = set(rows)
    inputs = {*jaxpr.invars, *jaxpr.constvars}
    for result in results:
        waiting, seen = [jaxpr.outvars[result]], set[Any]()
        while waiting:
            var = waiting.pop()
            if isinstance(var, Literal) or var in seen:
                continue
            seen.add(var)
            if var not in ends:
                waiting += sources(var)
        if seen & ends and not (seen - ends) & inputs:
            return result
    return None
