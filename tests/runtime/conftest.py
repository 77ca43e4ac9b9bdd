"""Where the kernels run: on the GPU if there is one, else under Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    from support.interpreter import mend_interpreter

    mend_interpreter()


@pytest.fixture
def device() -> torch.device:
    """The device that the kernels are tested on."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@pytest.fixture
def hopper() -> None:
    """Skips a test where there is no Hopper GPU."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a Hopper GPU")
