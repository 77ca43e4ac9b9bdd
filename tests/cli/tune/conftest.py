"""The portable kernels run under Triton's interpreter where there is no GPU."""

from __future__ import annotations

import torch

if not torch.cuda.is_available():
    from support.interpreter import mend_interpreter

    mend_interpreter()
