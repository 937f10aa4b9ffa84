"""Errors before and during training; `vit_rpe.cli.train` gives each its exit code."""


class RecipeError(ValueError):
    """A recipe that cannot be used as it is."""


class CheckpointError(ValueError):
    """A checkpoint, or a run, that cannot be used as it is."""


class Stopped(BaseException):
    """The end of a run by a signal, of which all ranks know, and with the state saved.

    No Exception: it comes from a handler, anywhere, and is not to be taken for an error of a build
    or of a model that is made at that moment.
    """


class Miscounted(RuntimeError):
    """An evaluation that missed a sample or counted one twice: a fault of the program."""


class Diverged(RuntimeError):
    """The end of a run in which too many losses or gradients were not finite."""


class Unequal(RuntimeError):
    """A step that was made again and did not come to what its run recorded."""
