"""Reference predicates of real attention masks, by which masks written in the language are judged.

One function per mask:  name(q, k, **params) -> bool array, broadcast over q and k, which are
0-based token numbers.  `PREDICATES` maps a name to its predicate, shape and parameters at about
1K tokens.  Written from the definitions; no third-party code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

INT = np.int32


@dataclass(frozen=True)
class Predicate:
    """A mask as a numpy predicate over q_len queries and kv_len keys."""

    function: Callable[..., Any]
    q_len: int
    kv_len: int
    params: dict[str, Any] = field(default_factory=dict)

    def dense(self) -> Any:
        """bool[q_len, kv_len]."""
        q, k = np.arange(self.q_len)[:, None], np.arange(self.kv_len)[None]
        return np.broadcast_to(self.function(q, k, **self.params), (self.q_len, self.kv_len))


# --------------------------------------------------------------------------- helpers
def ids_of(lengths, total=None, fill=-1):
    """Segment id of every position; positions past the last segment get `fill`."""
    ids = np.repeat(np.arange(len(lengths), dtype=INT), np.asarray(lengths, dtype=np.int64))
    if total is not None and total > ids.size:
        ids = np.concatenate([ids, np.full(total - ids.size, fill, INT)])
    return ids


def starts_of(lengths, total=None):
    """Start position of the segment that every position lies in."""
    off = np.concatenate([[0], np.cumsum(lengths)]).astype(INT)
    s = np.repeat(off[:-1], np.asarray(lengths, dtype=np.int64))
    if total is not None and total > s.size:
        s = np.concatenate([s, np.arange(s.size, total, dtype=INT)])
    return s


def at(table, i):
    """table[i] with i clipped, so that out-of-range positions stay harmless."""
    t = np.asarray(table)
    return t[np.clip(i, 0, t.size - 1)]


def both(q, k):
    """Broadcast a query-only or key-only condition to the full tile."""
    return np.zeros(np.broadcast(q, k).shape, bool)


# ======================================================================= 1. basic masks
def full(q, k):
    return both(q, k) | True


def causal(q, k):
    return k <= q


def causal_bottom_right(q, k, lq, lk):
    """FlashAttention >= 2.1, xFormers *FromBottomRight, TE causal_bottom_right."""
    return k <= q + (lk - lq)


def chunked_prefill(q, k, past):
    """q indexes the new chunk, k the whole cache (past tokens, then the chunk)."""
    return k <= q + past


def padding(q, k, lq, lk):
    """TE padding: real query and real key."""
    return (q < lq) & (k < lk)


def padding_causal(q, k, lq, lk):
    """TE padding_causal (top-left)."""
    return (q < lq) & (k < lk) & (k <= q)


def decode_ragged(q, k, kv_len):
    """One query row per sequence; row b reads its first kv_len[b] cache slots."""
    return k < at(kv_len, q)


def packed_full(q, k, lengths):
    d = ids_of(lengths)
    return (at(d, q) == at(d, k)) & (q < d.size) & (k < d.size)


def packed_causal(q, k, lengths):
    s = starts_of(lengths)
    return (k >= at(s, q)) & (k <= q) & (q < s.size)


def window(q, k, left, right):
    """Inclusive band  q-left <= k <= q+right  (FlashAttention / TE / cuDNN form)."""
    return (k >= q - left) & (k <= q + right)


def sliding_causal_hf(q, k, w):
    """HF transformers, FlashMask, xFormers: w keys, the query itself included."""
    return (k <= q) & (k > q - w)


def sliding_causal_flex(q, k, w):
    """attention-gym / MagiAttention: w past keys plus the query itself (w + 1 keys)."""
    return (k <= q) & (q - k <= w)


def sliding_bidirectional(q, k, w):
    """HF bidirectional overlay and Longformer: |q-k| <= w."""
    return np.abs(q - k) <= w


def packed_window(q, k, lengths, left, right):
    """ModernBERT local layers: varlen + band."""
    return packed_full(q, k, lengths) & window(q, k, left, right)


def chunked_causal(q, k, c):
    """Llama 4 RoPE layers (and FA3 attention_chunk with causal=True)."""
    return (k <= q) & (k // c == q // c)


def dilated_window(q, k, w, d):
    """attention-gym: symmetric, |q-k| <= w and a multiple of d."""
    t = np.abs(q - k)
    return (t <= w) & (t % d == 0)


def dilated_window_causal(q, k, w, d):
    """FA4 test definition: 0 <= q-k < w and a multiple of d."""
    t = q - k
    return (t >= 0) & (t < w) & (t % d == 0)


def strided_sparse(q, k, stride):
    """OpenAI sparse attention, 'strided' head."""
    return (k <= q) & ((q - k) % stride == 0)


def sink_window(q, k, sink, recent):
    """StreamingLLM (evict_for_space form): sink first keys plus `recent` last keys."""
    return (k <= q) & ((k < sink) | (q - k < recent))


def sink_window_fa(q, k, lq, lk, left, right, sink):
    """FA3 construct_local_mask with sink_token_length; band is bottom-right aligned."""
    c = q + (lk - lq)
    return (k <= np.minimum(c + right, lk)) & ((k >= c - left) | (k < sink))


# ============================================================= 2. language-model masks
def prefix_lm(q, k, p):
    """Also PaliGemma (p = image + prompt), T5 prefix-LM, SID-GR encoder history."""
    return (k <= q) | (k < p) & (q < p)


def prefix_lm_document(q, k, docs):
    """docs = [(prefix, length), ...]; the tail past the last document is empty rows."""
    ln = [b for _, b in docs]
    d, s = ids_of(ln), starts_of(ln)
    p = np.repeat([a for a, _ in docs], ln)
    rel_q, rel_k = q - at(s, q), k - at(s, k)
    same = (at(d, q) == at(d, k)) & (q < d.size) & (k < d.size)
    return same & ((k <= q) | ((rel_k < at(p, k)) & (rel_q < at(p, q))))


def share_question(q, k, prompt, answers):
    """One prompt, several answers: an answer reads the prompt and itself, causally."""
    d = ids_of([prompt, *answers])
    dq, dk = at(d, q), at(d, k)
    return (k <= q) & ((dk == 0) | (dk == dq)) & (q < d.size)


def share_question_packed(q, k, groups):
    """groups = [[prompt, answer, answer, ...], ...] packed one after another."""
    g = ids_of([sum(x) for x in groups])
    flat = [y for x in groups for y in x]
    d = ids_of(flat)
    is_prompt = np.repeat([i == 0 for x in groups for i in range(len(x))], flat)
    same_group = (at(g, q) == at(g, k)) & (q < g.size)
    return same_group & (k <= q) & (at(is_prompt, k) | (at(d, q) == at(d, k)))


def causal_blockwise(q, k, lengths):
    """FlashMask: every block is causal alone; the last block reads everything before."""
    d = ids_of(lengths)
    last = len(lengths) - 1
    return (k <= q) & ((at(d, q) == at(d, k)) | (at(d, q) == last)) & (q < d.size)


def hash_sparse(q, k, bucket, order):
    """Sorted by (bucket, original index): same bucket and original causal order.
    bucket[i], order[i] describe the i-th token after sorting."""
    return (at(bucket, q) == at(bucket, k)) & (at(order, k) <= at(order, q))


def block_causal(q, k, b):
    """Bidirectional inside a block, causal between blocks (LLaDA2/SDAR prefill, MAGI)."""
    return k // b <= q // b


def block_causal_lengths(q, k, lengths):
    """VAR next-scale: blocks of unequal length."""
    d = ids_of(lengths)
    return (at(d, k) <= at(d, q)) & (q < d.size) & (k < d.size)


def block_diffusion(q, k, n, b):
    """BD3-LM training on [noisy x_t | clean x_0], each n long."""
    qn, kn = q < n, k < n
    qb, kb = (q % n) // b, (k % n) // b
    return (qn & kn & (qb == kb)) | (qn & ~kn & (qb > kb)) | (~qn & ~kn & (qb >= kb))


def image_blocks(q, k, image_id):
    """HF blockwise overlay (Gemma 3): causal, or both in the same image (id >= 0)."""
    iq, ik = at(image_id, q), at(image_id, k)
    return (k <= q) | ((iq == ik) & (iq >= 0))


def transfusion(q, k, spans):
    """Causal, or q at/after a span's start and k before its end."""
    m = k <= q
    for o, n in spans:
        m = m | ((q >= o) & (k < o + n))
    return m


def omni_attention(q, k, kind):
    """Show-o: kind 0 = pad, 1 = text (causal), 2 = image (reads every text and image
    token, also later ones).  Nobody reads a pad; pad rows are empty here."""
    kq, kk = at(kind, q), at(kind, k)
    return (((kq == 1) & (k <= q)) | (kq == 2)) & (kk > 0)


# ----------------------------------------------------------------- speculative decoding
def tree_verify(q, k, past, parent):
    """All `past` keys, and the ancestors of node q, itself included (Medusa, EAGLE, JetSpec).

    Parents come before their children; the root's is -1.
    """
    n = len(parent)
    sees = np.eye(n, dtype=bool)
    for i in range(1, n):
        sees[i] |= sees[parent[i]]
    t = k - past
    return (t < 0) | (sees[np.clip(q, 0, n - 1), np.clip(t, 0, n - 1)] & (t >= 0) & (t < n))


def eagle3_ttt(q, k, n, length):
    """EAGLE-3 training-time test: n keys of step 0 (causal), then one n-long slab per
    later step from which row q reads only its own diagonal entry."""
    base = (k <= q) & (k < length) & (q < length)
    diag = (k >= n) & (k % n < length) & ((k - q) % n == 0)
    return base | diag


def dflash(q, k, s, b, anchors, valid=None):
    """DFlash draft training: query block j (b rows) reads context keys before anchors[j]
    and its own draft block, both ways."""
    j = q // b
    a = at(anchors, j)
    ok = j < len(anchors)
    if valid is not None:
        ok = ok & at(np.asarray(valid, bool), j)
    return (((k < s) & (k < a)) | ((k >= s) & ((k - s) // b == j))) & ok


def draft_blocks_causal(q, k, past, b):
    """JetSpec head training: whole prefix, then causal inside the own sampled block."""
    t = k - past
    return (t < 0) | ((t // b == q // b) & (t % b <= q % b))


# ----------------------------------------------------------------------- cross attention
# ================================================================ 3. recommender masks
def hstu(q, k, n, targets, contextual=0, max_attn_len=0, min_full=0):
    """Meta HSTU reference (PyTorch and Triton).  n = valid length of the sequence =
    contextual + history + targets.  Contextual rows read everything but the targets;
    history is causal (banded by max_attn_len, except the last min_full rows); a target
    reads the history like the row at the end of the history, and itself."""
    uih = n - targets
    c = max(contextual - 1, 0)
    cap = uih - c  # position id shared by all targets
    iq = np.minimum(np.maximum(q - c, 0), cap)
    ik = np.minimum(np.maximum(k - c, 0), cap)
    d = iq - ik
    m = (q == k) | (d > 0)
    if max_attn_len:
        near = d <= max_attn_len
        m = m & ((near | (iq >= cap - min_full)) if min_full else near)
    if contextual:
        m = m | ((iq == 0) & (ik < cap))
    return m & (q < n) & (k < n)


def hstu_groups(q, k, n, contextual, targets, group):
    """NVIDIA / FBGEMM HSTU: contextual rows read all but the targets; targets come in
    groups of `group`, causal inside the group, blind to other groups."""
    h = n - targets
    m = (k <= q) & ~((q >= h) & (k >= h) & (k < h + (q - h) // group * group))
    return (m | ((q < contextual) & (k < h))) & (q < n) & (k < n)


def hstu_batch(q, k, contextual, history, targets, group=1):
    """Jagged batch: hstu_groups per sequence, packed one after another."""
    ln = np.asarray(contextual) + np.asarray(history) + np.asarray(targets)
    off = np.concatenate([[0], np.cumsum(ln)])
    b = ids_of(ln)
    bq, bk = at(b, q), at(b, k)
    lq, lk = q - off[bq], k - off[bk]
    h = (ln - np.asarray(targets))[bq]
    c = np.asarray(contextual)[bq]
    m = (lk <= lq) & ~((lq >= h) & (lk >= h) & (lk < h + (lq - h) // group * group))
    m = m | ((lq < c) & (lk < h))
    return m & (bq == bk) & (q < b.size) & (k < b.size)


def interval_table(q, k, func):
    """NVIDIA arbitrary mask.  func has an odd number of rows F0..F2m over query rows:
    visible(q) = [0, F0) u [F1, F2) u [F3, F4) ..."""
    f = np.asarray(func)
    qq = np.clip(q, 0, f.shape[1] - 1)
    m = k < f[0][qq]
    for j in range(1, f.shape[0] - 1, 2):
        m = m | ((k >= f[j][qq]) & (k < f[j + 1][qq]))
    return m


def static_realtime_candidates(q, k, static, realtime, order_cut):
    """Three-part ranking layout: static profile/lifelong tokens (bidirectional and read
    by all), realtime tokens (causal), candidates that read the static part, the realtime
    tokens before their own impression time, and themselves."""
    h = static + realtime
    cut = at(np.concatenate([np.zeros(h, INT), np.asarray(order_cut, INT)]), q)
    base = k < static
    rt = (q >= static) & (q < h) & (k <= q) & (k >= static)
    cand = (q >= h) & (((k >= static) & (k < static + cut)) | (k == q))
    return base | rt | cand


def sid_beams(q, k, history, beams, length):
    """NVIDIA SID-GR beam search batch: history[b] tokens, then beams regions of `length`
    tokens; a region reads its history and itself, causally."""
    h = np.asarray(history)
    ln = h + beams * length
    off = np.concatenate([[0], np.cumsum(ln)])
    b = ids_of(ln)
    bq, bk = at(b, q), at(b, k)
    lq, lk, hh = q - off[bq], k - off[bk], h[bq]
    rq, rk = (lq - hh) // length, (lk - hh) // length
    return (bq == bk) & (lk <= lq) & ((lk < hh) | (rq == rk)) & (q < b.size) & (k < b.size)


# ================================================================ 4. image / video masks
def clear(q, k, h, w, text, r):
    """CLEAR: text first; image tokens in raster order; open disc of radius r."""
    qy, qx = (q - text) // w, (q - text) % w
    ky, kx = (k - text) // w, (k - text) % w
    return (q < text) | (k < text) | ((qy - ky) ** 2 + (qx - kx) ** 2 < r * r)


def _na_axis(i, j, n, win, stride=1, causal_axis=False):
    """One axis of NATTEN: window of `win`, leader of the stride group, shifted inwards."""
    left, right = win // 2, win // 2 + (win % 2 - 1)
    if causal_axis:
        lead = np.minimum(i // stride * stride + stride - 1, n - 1)
        lo = np.maximum(lead - left - right, 0)
        return (j >= lo) & (j <= i)
    lead = np.minimum(i // stride * stride + stride // 2, n - 1)
    lo = np.maximum(lead - left, 0) + np.where(lead + right >= n, n - right - lead - 1, 0)
    return (j >= lo) & (j < lo + win)


def natten_1d(q, k, n, win, stride=1, causal_axis=False):
    return _na_axis(q, k, n, win, stride, causal_axis)


def natten_2d(q, k, h, w, win, stride=(1, 1)):
    """NATTEN / GNA on a raster image (dilation 1)."""
    return _na_axis(q // w, k // w, h, win[0], stride[0]) & _na_axis(
        q % w, k % w, w, win[1], stride[1]
    )


def natten_gym(q, k, side, kernel):
    """attention-gym generate_natten on a square canvas (odd kernel; equals natten_2d)."""
    r = kernel // 2
    cy, cx = np.clip(q // side, r, side - 1 - r), np.clip(q % side, r, side - 1 - r)
    return (np.abs(cy - k // side) <= r) & (np.abs(cx - k % side) <= r)


def _sta_axis(a, b, n, win):
    left, right = win // 2, win // 2 + (win % 2 - 1)
    c = np.clip(a, left, n - 1 - right)
    return (b >= c - left) & (b <= c + right)


def sta_3d(q, k, canvas, kernel, tile, text=0):
    n, tl = int(np.prod(canvas)), int(np.prod(tile))
    g = [canvas[i] // tile[i] for i in range(3)]
    w = [kernel[i] // tile[i] for i in range(3)]
    qt, kt = q // tl, k // tl
    s = g[1] * g[2]
    near = (
        _sta_axis(qt // s, kt // s, g[0], w[0])
        & _sta_axis(qt % s // g[2], kt % s // g[2], g[1], w[1])
        & _sta_axis(qt % g[2], kt % g[2], g[2], w[2])
    )
    return ((q < n) & (k < n) & near) | ((k >= n) & (k < n + text)) | ((q >= n) & (k < n + text))


def svg_spatial(q, k, prompt, frame, width, sink=False, rounding=128):
    """Sparse VideoGen spatial head: prompt rows and columns, and a band."""
    band = width * frame // rounding * rounding
    first = k < prompt + (frame if sink else 0)
    return first | (q < prompt) | (np.abs(q - k) < band)


def frame_block_causal(q, k, frames, frame, per_block, local=-1):
    """CausVid / Self-Forcing / FastVideo: block of per_block frames, causal between
    blocks, optional window of `local` frames; padded rows read only themselves."""
    n, b = frames * frame, frame * per_block
    end = np.where(q < n, q // b * b + b, 0)
    m = k < end
    if local != -1:
        m = m & (k >= end - local * frame)
    return m | (q == k)


def scaled(lengths, total):
    """Lengths scaled to a new total, each at least 1."""
    s = sum(lengths)
    out = [max(1, x * total // s) for x in lengths]
    out[-1] += total - sum(out)
    return out


# FlashMask's own 32K kernel-test sample (prefix, document) lengths.
DOC32 = [
    (884, 3482),
    (956, 4024),
    (922, 4638),
    (864, 4022),
    (308, 2879),
    (185, 956),
    (450, 3586),
    (750, 2682),
    (707, 3546),
    (705, 2953),
]
L32 = [n for _, n in DOC32]
L1 = scaled(L32, 1024)
DOC1 = [(max(1, p * n1 // n), n1) for (p, n), n1 in zip(DOC32, L1, strict=True)]


def _groups(lengths, seed):
    """Split every document into one question and 2-6 answers of random length."""
    r = np.random.default_rng(seed)
    out = []
    for n in lengths:
        parts = int(r.integers(3, 8))
        out.append([int(x) for x in r.multinomial(n - parts, [1 / parts] * parts) + 1])
    return out


def _image_ids(n, text, img):
    ids, i, c = np.full(n, -1, INT), text, 0
    while i + img <= n:
        ids[i : i + img] = c
        c, i = c + 1, i + img + text
    return ids


def _spans(n, text, img):
    return [(i, img) for i in range(text, n - img + 1, text + img)]


def _hash(n, buckets, seed):
    b = np.random.default_rng(seed).integers(0, buckets, n)
    order = np.lexsort((np.arange(n), b))
    return dict(bucket=b[order].astype(INT), order=order.astype(INT))


def _anchors(n, s, b, seed):
    return sorted(
        int(x) for x in np.random.default_rng(seed).choice(np.arange(1, s - b), n, replace=False)
    )


def _func3(n, seed):
    """A 3-row interval table: causal history, then rows with a random prefix and self."""
    g = np.random.default_rng(seed)
    h = n // 2
    f = np.zeros((3, n), INT)
    f[0, :h] = np.arange(1, h + 1)
    f[1:, :h] = h
    f[0, h:] = g.integers(0, h + 1, n - h)
    f[1, h:] = np.arange(h, n)
    f[2, h:] = np.arange(h + 1, n + 1)
    return f


def _hstu_lens(total, seqs, seed):
    """Jagged histories, about Zipf-like, with a few contextual tokens and 20 targets."""
    g = np.random.default_rng(seed)
    w = g.random(seqs) ** 2 + 0.05
    c = [6] * seqs
    t = [20] * seqs
    h = [max(1, int(x)) for x in w / w.sum() * (total - 26 * seqs)]
    h[-1] += total - 26 * seqs - sum(h)
    return c, h, t


PREDICATES: dict[str, Predicate] = {}


def _add(name: str, q_len: int, kv_len: int, function: Any = None, /, **params: Any) -> None:
    PREDICATES[name] = Predicate(function or globals()[name], q_len, kv_len, params)


def _build() -> None:
    n = 1024
    _add("full", n, n)
    _add("causal", n, n)
    _add("causal_bottom_right", 256, n, lq=256, lk=n)
    _add("chunked_prefill", 256, n, past=768)
    _add("padding", n, n, lq=900, lk=900)
    _add("padding_causal", n, n, lq=900, lk=900)
    _add("decode_ragged", 64, n, kv_len=np.linspace(16, n, 64).astype(int))
    _add("packed_full", n, n, lengths=L1)
    _add("packed_causal", n, n, lengths=L1)
    _add("window", n, n, left=64, right=16)
    _add("sliding_causal_hf", n, n, w=128)
    _add("sliding_causal_flex", n, n, w=128)
    _add("sliding_bidirectional", n, n, w=64)
    _add("packed_window", n, n, lengths=L1, left=64, right=64)
    _add("chunked_causal", n, n, c=256)
    _add("dilated_window", n, n, w=64, d=2)
    _add("dilated_window_causal", n, n, w=256, d=2)
    _add("strided_sparse", n, n, stride=32)
    _add("sink_window", n, n, sink=4, recent=252)
    _add("sink_window_fa", 256, n, lq=256, lk=n, left=128, right=0, sink=16)

    _add("prefix_lm", n, n, p=256)
    _add("prefix_lm_document", n, n, docs=DOC1)
    _add("share_question", n, n, prompt=256, answers=[96] * 8)
    _add("share_question_rm2", n, n, share_question, prompt=512, answers=[256, 256])
    _add("share_question_packed", n, n, groups=_groups(L1, 1))
    _add("causal_blockwise", n, n, lengths=L1)
    _add("hash_sparse", n, n, **_hash(n, 8, 2))
    _add("block_causal", n, n, b=32)
    _add("block_causal_lengths", 680, 680, lengths=[1, 4, 9, 16, 25, 36, 64, 100, 169, 256])
    _add("block_diffusion", n, n, n=512, b=16)
    _add("image_blocks", n, n, image_id=_image_ids(n, 40, 256))
    _add("transfusion", n, n, spans=_spans(n, 40, 256))
    kind = np.r_[np.zeros(100, INT), np.ones(400, INT), np.full(524, 2, INT)]
    _add("omni_attention", n, n, kind=kind)
    parents = [-1, *np.random.default_rng(0).integers(0, np.arange(1, 64)).tolist()]
    _add("tree_verify", 64, n, past=960, parent=parents)
    _add("eagle3_ttt", 256, 256 * 7, n=256, length=240)
    _add("dflash", 256, n, s=768, b=16, anchors=_anchors(16, 768, 16, 4))
    _add("draft_blocks_causal", 256, n, past=768, b=16)

    _add("hstu", n, n, n=1000, targets=20, contextual=6)
    _add("hstu_window", n, n, hstu, n=1000, targets=20, contextual=6, max_attn_len=128)
    _add("hstu_groups", n, n, n=1000, contextual=6, targets=110, group=11)
    contextual, history, targets = _hstu_lens(n, 4, 6)
    _add("hstu_batch", n, n, contextual=contextual, history=history, targets=targets)
    _add("interval_table", n, n, func=_func3(n, 7))
    cut = np.linspace(0, 200, 224).astype(int)
    _add("static_realtime_candidates", n, n, static=600, realtime=200, order_cut=cut)
    _add("sid_beams", n, n, history=[300, 212, 256], beams=20, length=4)

    _add("clear", 832, 832, h=24, w=32, text=64, r=8)
    _add("clear_r8", 832, 832, clear, h=24, w=32, text=64, r=4)
    _add("clear_r32", 832, 832, clear, h=24, w=32, text=64, r=12)
    _add("natten_1d", n, n, n=n, win=128, stride=16)
    _add("natten_2d", n, n, h=32, w=32, win=(10, 10))
    _add("natten_gym", n, n, side=32, kernel=9)
    _add("sta_3d", n + 64, n + 64, canvas=(4, 16, 16), kernel=(2, 8, 12), tile=(2, 4, 4), text=50)
    _add("svg_spatial", n, n, prompt=64, frame=60, width=2, rounding=32)
    _add("frame_block_causal", n, n, frames=21, frame=48, per_block=3)
    local = dict(frames=21, frame=48, per_block=3, local=9)
    _add("frame_block_causal_local", n, n, frame_block_causal, **local)


_build()
