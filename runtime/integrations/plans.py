"""A mask's plans by length, and whether it can serve sliding windows and caches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import numpy as np
import torch

from cmask.runtime.derive.bound import BoundMask
from cmask.runtime.derive.sizes import BindError, UnboundError
from cmask.runtime.mask import Mask, Plan

MAX_PLANS = 64  # of one mask: a plan of 32k tokens is some megabytes on its device
_MAX_ROWS = 64  # that are compared at two lengths
_CPU = torch.device("cpu")
_FOLLOW = (
    "one of its sizes must follow `seq`: neither `cmask compile --size` nor `register` may fix it"
)


class Plans:
    """The plans of one mask, made when first asked for; the `MAX_PLANS` used last are kept.

    sizes: sizes, parameters and tables that stay the same; `seq` is the length of each call.
    """

    def __init__(self, mask: Mask, sizes: Mapping[str, object]) -> None:
        self.mask, self.sizes = mask, dict(sizes)
        self._kept: OrderedDict[tuple[object, ...], Plan] = OrderedDict()
        self._windows: set[int] = set()
        self._grows = False

    def __len__(self) -> int:
        return len(self._kept)

    def plan(
        self, num_tokens: int, rows: tuple[int, int], device: torch.device, window: int | None
    ) -> Plan:
        """Queries `rows` of the mask of `num_tokens` tokens.

        window: what the layer says that each token sees; see `check_window`.

        Raises `BindError` if the mask does not follow `seq`, or not to this length.
        """
        key = (num_tokens, rows, device, window)
        plan = self._kept.pop(key, None)
        if plan is None:
            plan = self._bind(num_tokens, rows, device)
            if window is not None:
                _check_rows(plan.bound, window)
        self._kept[key] = plan
        if len(self._kept) > MAX_PLANS:
            self._kept.popitem(last=False)
        return plan

    def check_window(self, window: int) -> None:
        """Refuse (ValueError) unless each token sees just the last `window`, itself included.

        At twice that length, before a longer sequence comes upon the difference; the rows of
        every plan are compared again.
        """
        if window not in self._windows:
            _check_rows(self._bind(2 * window, (0, 2 * window), _CPU).bound, window)
            self._windows.add(window)

    def check_growth(self, num_cached: int, num_tokens: int) -> None:
        """Refuse (ValueError) a mask whose earlier rows change when tokens are added.

        What a model computed for tokens in its cache went by the mask of `num_cached` tokens.  Up
        to 64 of its rows are compared, at the first two lengths that come.
        """
        if self._grows:
            return
        short, long = (self._bind(n, (0, n), _CPU).bound for n in (num_cached, num_tokens))
        rows = np.unique(np.linspace(0, num_cached - 1, _MAX_ROWS).astype(np.int64))
        before = short.visible(rows, np.arange(num_cached))
        after = long.visible(rows, np.arange(num_tokens))
        changed = after[:, num_cached:].any(1) | (after[:, :num_cached] != before).any(1)
        if changed.any():
            raise ValueError(
                f"mask `{self.mask.name}` cannot serve a cache: token {rows[changed][0]} sees "
                f"other tokens among {num_tokens} than among {num_cached}; give `register` the "
                "sizes that do not grow, or call the model with use_cache=False"
            )
        self._grows = True

    def _bind(self, num_tokens: int, rows: tuple[int, int], device: torch.device) -> Plan:
        where = f"mask `{self.mask.name}` at {num_tokens} tokens"
        try:
            plan = self.mask.bind(seq=num_tokens, rows=rows, device=device, **self.sizes)
        except UnboundError as error:
            raise BindError(
                f"{where}: {error}; the length of a call is its `seq`: write a sizes block, such "
                "as `sizes { text = seq }`, or give the size to `register`"
            ) from None
        except BindError as error:
            raise BindError(f"{where}: {error}; {_FOLLOW}") from None
        lengths = plan.bound.tokens.length("q"), plan.kv_len
        if lengths != (num_tokens, num_tokens):
            raise BindError(
                f"{where}: it has {lengths[0]} queries and {lengths[1]} keys; {_FOLLOW}"
            )
        return plan


def _check_rows(bound: BoundMask, window: int) -> None:
    """Refuse rows of a mask that are not those of a window."""
    stops = np.arange(*bound.rows) + 1
    starts = np.maximum(stops - window, 0)
    found = bound.row_intervals()
    is_same = np.zeros(len(stops), bool)
    if found is not None:
        alone = np.flatnonzero(found.counts == 1)
        at = found.offsets[alone]
        is_same[alone] = (found.starts[at] == starts[alone]) & (found.stops[at] == stops[alone])
    if is_same.all():
        return
    row = int(np.argmin(is_same))
    keys = np.flatnonzero(bound.visible(np.array([row]), np.arange(bound.kv_len))[0])
    seen = f"{len(keys)} keys, {keys[0]} to {keys[-1]}" if len(keys) else "none"
    raise ValueError(
        f"the model's window is {window} tokens, but in mask `{bound.form.name}` token "
        f"{stops[row] - 1} sees {seen}, not {stops[row] - starts[row]} keys, {starts[row]} to "
        f"{stops[row] - 1}"
    )
