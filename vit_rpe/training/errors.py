"""What can be wrong before or while training; `run.py` gives each its exit code."""


class RecipeError(ValueError):
    """A recipe that cannot be used as it is."""


class CheckpointError(ValueError):
    """A checkpoint, or a run, that cannot be used as it is."""


class Stopped(Exception):
    """A signal came, all ranks know, and the state is saved."""


class Miscounted(RuntimeError):
    """An evaluation that missed a sample or counted one twice: a fault of the program."""


class Diverged(RuntimeError):
    """More steps than allowed had a loss or a gradient that was not finite."""
