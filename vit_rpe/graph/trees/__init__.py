"""Masks of distances in trees and forests."""

from .exponential import TreeExponential
from .function import TreeFunction

__all__ = ["TreeExponential", "TreeFunction"]
