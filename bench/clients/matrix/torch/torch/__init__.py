__version__ = "2.9.1"


class Generator:
    def manual_seed(self, seed):
        return self


class Tensor:
    """There is none: datasets asks whether a value is one."""


from torch import nn, utils  # noqa: E402,F401
