"""What the tests of this room share with the sampler's."""

from tests.sampling.conftest import gpus

__all__ = ["gpus"]
