"""The pool: `Pool` is its public face; the other files are the parts that it is made of."""

from .lanes import Lane
from .pool import Pool

__all__ = ["Lane", "Pool"]
