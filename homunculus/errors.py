"""Every error a user can cause, each a `ValueError` whose one-line message names the problem and the fix."""


class HomunculusError(ValueError):
    """Base class: `except HomunculusError` catches everything this library refuses."""


class ImageError(HomunculusError):
    """The image cannot be read, or is not in a layout we accept."""


class BudgetError(HomunculusError):
    """The budget cannot be met: not a positive integer, below a method's minimum, or more than there are leaves."""


class DensityError(HomunculusError):
    """The density is not a finite nonnegative map of the right shape."""


class FixationError(HomunculusError):
    """A fixation lies outside the image or has the wrong shape."""


class RelevanceError(HomunculusError):
    """A relevance source is unknown or returned something that is not a map."""


class QueryError(HomunculusError):
    """The queries do not fit the images."""


class AllocatorError(HomunculusError):
    """The allocator is unknown, was given an option it does not take, or lacks what it needs."""


class CacheError(HomunculusError):
    """A cache was given something it cannot hold, or a bound it cannot keep."""


class OutputError(HomunculusError):
    """The result cannot be written where it was asked for."""


class KernelError(HomunculusError):
    """A kernel that cannot do what is asked, or cannot be built."""


class DataError(HomunculusError):
    """A record, a family, a data set or an answer that is not what it should be."""


class ModelError(HomunculusError):
    """A model that cannot be built or loaded, or cannot answer what it is asked."""
