"""Errors of studies."""


class StudyError(ValueError):
    """A study that cannot be used as it is."""
