"""The pool: `Pool` is its public face; the other files are the parts that it is made of."""

from .pool import Pool

__all__ = ["Pool"]
