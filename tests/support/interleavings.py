"""Every order in which the steps of several actors may happen, each actor's own in its order."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

Step = TypeVar("Step")


def interleavings(*actors: Sequence[Step]) -> Iterator[list[Step]]:
    """Yield every interleaving of these sequences of steps."""
    if not any(actors):
        yield []
        return
    for i, steps in enumerate(actors):
        if steps:
            left = [*actors[:i], steps[1:], *actors[i + 1 :]]
            for rest in interleavings(*left):
                yield [steps[0], *rest]
