"""What has to agree: mask_mods with the masks, pair counts, results with float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from cases import Case, compiled, dense
from torch import Tensor

from cmask.runtime.mask import Plan

SAMPLES = 24
OUT_TOLERANCE = 2e-2
LSE_TOLERANCE = 5e-3
_ALL_ROWS_UP_TO = 4096  # tokens; of longer masks some rows
_SOME_ROWS = 512


@dataclass(frozen=True)
class Errors:
    """Largest errors of sampled rows against float64."""

    out: float
    lse: float

    @property
    def are_small(self) -> bool:
        """Whether the result may be timed; not so for NaN."""
        return self.out <= OUT_TOLERANCE and self.lse <= LSE_TOLERANCE


def errors(plan: Plan, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> Errors:
    """Sampled (batch, head, row) against float64 by the mask's own definition."""
    random = np.random.default_rng(0)
    rows = random.integers(0, plan.q_len, SAMPLES)
    rows[:2] = 0, plan.q_len - 1
    visible = torch.from_numpy(plan.bound.visible(rows, np.arange(plan.kv_len))).to(q.device)
    worst_out = worst_lse = 0.0
    for row, seen in zip(rows.tolist(), visible, strict=True):
        b, h = int(random.integers(q.shape[0])), int(random.integers(q.shape[1]))
        exact_out, exact_lse = _exact(
            q[b, h, row], k[b], v[b], seen, h // (q.shape[1] // k.shape[1])
        )
        worst_out = _worse(worst_out, (out[b, h, row].double() - exact_out).abs().max().item())
        worst_lse = _worse(worst_lse, _distance(lse[b, h, row].item(), exact_lse.item()))
    return Errors(worst_out, worst_lse)


def _exact(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, head: int) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of one row in float64."""
    if not seen.any():
        return v.new_zeros(v.shape[-1], dtype=torch.float64), torch.tensor(-torch.inf)
    scores = k[head, seen].double() @ q.double() / q.shape[-1] ** 0.5
    lse = torch.logsumexp(scores, 0)
    return torch.exp(scores - lse) @ v[head, seen].double(), lse


def _worse(a: float, b: float) -> float:
    """The larger one; NaN if either is NaN."""
    return b if b != b or b > a else a


def _distance(a: float, b: float) -> float:
    return 0.0 if a == b else abs(a - b)


def difference(a: Tensor, b: Tensor) -> float:
    """Largest difference of two outputs, or NaN; one element of the batch at a time."""
    each = [(x.float() - y.float()).abs().max() for x, y in zip(a, b, strict=True)]
    return float(torch.stack(each).max())


@dataclass(frozen=True)
class Agreement:
    """What a mask_mod and the mask said of the same pairs.

    counted: visible pairs in the rows compared; equal to `facts` where all rows were.
    """

    rows: int
    differing: int
    counted: int
    facts: int
    is_whole: bool

    @property
    def holds(self) -> bool:
        """Whether nothing differs."""
        return self.differing == 0 and (not self.is_whole or self.counted == self.facts)


def compare_masks(case: Case) -> Agreement:
    """A case's mask_mod against its compiled mask, on the CPU."""
    mask = compiled(case)
    bound, mod, facts = mask.bind(device="cpu").bound, case.mask_mod("cpu"), mask.facts
    assert facts is not None, f"{case.name}: a size was left unbound"
    assert bound.q_len == bound.kv_len == case.seq, f"{case.name}: {bound.q_len} tokens"
    rows = np.arange(case.seq)
    if case.seq > _ALL_ROWS_UP_TO:
        rows = np.sort(np.random.default_rng(0).choice(rows, _SOME_ROWS, replace=False))
    differing = counted = 0
    for part in np.array_split(rows, max(1, len(rows) // 256)):
        seen = torch.from_numpy(bound.visible(part, np.arange(case.seq)))
        shown = dense(mod, torch.from_numpy(part), torch.arange(case.seq))
        differing += int((seen != shown).sum())
        counted += int(seen.sum())
    is_whole = len(rows) == case.seq
    return Agreement(len(rows), differing, counted, facts.visible_pairs, is_whole)
