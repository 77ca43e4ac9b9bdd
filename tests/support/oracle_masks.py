"""The catalogued masks of `mask_predicates`, written in the language, at the same sizes.

Not written, because they need what the language does not have yet:

    random_eviction     hides keys from some row on: `seen(death[key])`
    flamingo_intervals  the interval of queries belongs to the key: `seen(birth[key], death[key])`
    natten_morton       tokens stored along a Z curve: `stored morton`
    block_topk          a table of visible blocks: `blocks(gate, 64, 128)`
    vsa_topk            the same: `blocks(gate, 64)`
    vertical_slash      key columns and diagonals chosen at run time: no construct but `rows(f)`,
                        whose table would be the predicate itself
"""

from __future__ import annotations

from typing import Any

from support.mask_predicates import PREDICATES

TEXTS = {
    "full": """
mask full {
    region text
    text sees text: all
    sizes { text = 1024 }
}
""",
    "causal": """
mask causal {
    region text
    text sees text: causal
    sizes { text = 1024 }
}
""",
    "causal_bottom_right": """
mask causal_bottom_right {
    query region question align end
    key region cache
    question sees cache: causal
    sizes { question = 256; cache = 1024 }
}
""",
    "chunked_prefill": """
mask chunked_prefill {
    key region past
    region chunk
    chunk sees past: all
    chunk sees chunk: causal
    sizes { past = 768; chunk = 256 }
}
""",
    "padding": """
mask padding {
    region text
    region pad
    text sees text: all
    sizes { text = 900; pad = 124 }
}
""",
    "padding_causal": """
mask padding_causal {
    region text
    region pad
    text sees text: causal
    sizes { text = 900; pad = 124 }
}
""",
    "decode_ragged": """
mask decode_ragged {
    table kv_len[row]
    query region request
    key region cache
    request sees cache: until(kv_len[row])
    sizes { request = 64; cache = 1024 }
}
""",
    "packed_full": """
mask packed_full {
    group document* {
        region text
        text sees text: all
    }
    sizes { text = [108, 125, 144, 125, 89, 29, 112, 83, 110, 99] }
}
""",
    "packed_causal": """
mask packed_causal {
    group document* {
        region text
        text sees text: causal
    }
    sizes { text = [108, 125, 144, 125, 89, 29, 112, 83, 110, 99] }
}
""",
    "window": """
mask window {
    region text
    text sees text: window(64, 16)
    sizes { text = 1024 }
}
""",
    "sliding_causal_hf": """
mask sliding_causal_hf {
    region text
    text sees text: window(127, 0)
    sizes { text = 1024 }
}
""",
    "sliding_causal_flex": """
mask sliding_causal_flex {
    region text
    text sees text: window(128, 0)
    sizes { text = 1024 }
}
""",
    "sliding_bidirectional": """
mask sliding_bidirectional {
    region text
    text sees text: window(64, 64)
    sizes { text = 1024 }
}
""",
    "packed_window": """
mask packed_window {
    group document* {
        region text
        text sees text: window(64, 64)
    }
    sizes { text = [108, 125, 144, 125, 89, 29, 112, 83, 110, 99] }
}
""",
    "chunked_causal": """
mask chunked_causal {
    region text
    text sees text: same(pos / 256) & causal
    sizes { text = 1024 }
}
""",
    "dilated_window": """
mask dilated_window {
    region text order mod(2)
    text sees text: same(pos % 2) & window(64, 64)
    sizes { text = 1024 }
}
""",
    "dilated_window_causal": """
mask dilated_window_causal {
    region text order mod(2)
    text sees text: same(pos % 2) & window(255, 0)
    sizes { text = 1024 }
}
""",
    "strided_sparse": """
mask strided_sparse {
    region text order mod(32)
    text sees text: same(pos % 32) & causal
    sizes { text = 1024 }
}
""",
    "sink_window": """
mask sink_window {
    region text
    text sees text: causal & (first(4) | window(251, 0))
    sizes { text = 1024 }
}
""",
    "sink_window_fa": """
mask sink_window_fa {
    query region question align end
    key region cache
    question sees cache: window(128, 0) | first(16) & causal
    sizes { question = 256; cache = 1024 }
}
""",
    "prefix_lm": """
mask prefix_lm {
    region prefix
    region body
    prefix sees prefix: all
    body sees prefix, body: causal
    sizes { prefix = 256; body = 768 }
}
""",
    "prefix_lm_document": """
mask prefix_lm_document {
    group document* {
        region prefix
        region body
        prefix sees prefix: all
        body sees prefix, body: causal
    }
    sizes {
        prefix = [27, 29, 28, 26, 9, 5, 14, 23, 21, 23]
        body = [81, 96, 116, 99, 80, 24, 98, 60, 89, 76]
    }
}
""",
    "share_question": """
mask share_question {
    group sample* {
        region prompt
        region answer*
        prompt sees prompt: causal
        answer sees prompt: all
        answer sees answer: same(answer) & causal
    }
    sizes { sample = 1; prompt = 256; answer = [96] * 8 }
}
""",
    "share_question_rm2": """
mask share_question_rm2 {
    group sample* {
        region prompt
        region answer*
        prompt sees prompt: causal
        answer sees prompt: all
        answer sees answer: same(answer) & causal
    }
    sizes { sample = 1; prompt = 512; answer = [256, 256] }
}
""",
    "share_question_packed": """
mask share_question_packed {
    group sample* {
        region prompt
        region answer*
        prompt sees prompt: causal
        answer sees prompt: all
        answer sees answer: same(answer) & causal
    }
    sizes {
        prompt = [28, 24, 48, 41, 27, 9, 26, 29, 22, 24]
        answer = [[16, 27, 17, 20], [29, 23, 25, 24], [50, 46], [44, 40], [31, 31], [7, 4, 3, 2, 4],
                  [17, 13, 20, 20, 16], [32, 22], [22, 16, 26, 24], [35, 40]]
     }
}
""",
    "causal_blockwise": """
mask causal_blockwise {
    region block*
    region last_block
    block sees block: same(block) & causal
    last_block sees all: causal
    sizes { block = [108, 125, 144, 125, 89, 29, 112, 83, 110]; last_block = 99 }
}
""",
    "hash_sparse": """
mask hash_sparse {
    table order[row]
    region bucket* at order[row]
    bucket sees bucket: same(bucket) & causal
    sizes { bucket = [126, 125, 125, 139, 127, 122, 133, 127] }
}
""",
    "block_causal": """
mask block_causal {
    region text
    text sees text: upto(pos / 32)
    sizes { text = 1024 }
}
""",
    "block_causal_lengths": """
mask block_causal_lengths {
    region scale*
    scale sees scale: upto(scale)
    sizes { scale = [1, 4, 9, 16, 25, 36, 64, 100, 169, 256] }
}
""",
    "block_diffusion": """
mask block_diffusion {
    region noisy from 0
    region clean from 0
    noisy sees noisy: same(pos / 16)
    noisy sees clean: before(pos / 16)
    clean sees clean: upto(pos / 16)
    sizes { noisy = 512; clean = 512 }
}
""",
    "image_blocks": """
mask image_blocks {
    group part* {
        region text
        region image
    }
    all sees all: causal
    image sees image: same(part)
    sizes { text = [40, 40, 40, 136]; image = [256, 256, 256, 0] }
}
""",
    "transfusion": """
mask transfusion {
    group part* {
        region text
        region image
    }
    all sees all: causal
    image sees image: same(part)
    sizes { text = [40, 40, 40, 136]; image = [256, 256, 256, 0] }
}
""",
    "omni_attention": """
mask omni_attention {
    region pad
    region text
    region image
    text sees text, image: causal
    image sees text, image: all
    sizes { pad = 100; text = 400; image = 524 }
}
""",
    "eagle3_ttt": """
mask eagle3_ttt {
    region base
    region pad
    group step* {
        key region draft
        key region draft_pad
    }
    base sees base: causal
    base sees draft: self
    sizes { base = 240; pad = 16; step = 6; draft = 240; draft_pad = 16 }
}
""",
    "tree_verify": """
mask tree_verify {
    table parent[row]
    key region past
    region node
    node sees past: all
    node sees node: tree(parent[row])
    sizes { past = 960; node = 64 }
}
""",
    "dflash": """
mask dflash {
    table anchor[draft]
    key region context
    region draft*
    draft sees context: until(anchor[draft])
    draft sees draft: same(draft)
    sizes { context = 768; draft = [16] * 16 }
}
""",
    "draft_blocks_causal": """
mask draft_blocks_causal {
    key region past
    region draft*
    draft sees past: all
    draft sees draft: same(draft) & causal
    sizes { past = 768; draft = [16] * 16 }
}
""",
    "hstu": """
mask hstu {
    region context at 0
    region history from 1
    region target at end(history)
    region pad
    context sees context, history: all
    history sees context, history: causal
    target sees context, history: all
    target sees target: self
    sizes { context = 6; history = 974; target = 20; pad = 24 }
}
""",
    "hstu_window": """
mask hstu_window {
    param max_attn_len = 128
    region context at 0
    region history from 1
    region target at end(history)
    region pad
    context sees context, history: all
    history sees context, history: causal & window(max_attn_len, 0)
    target sees context, history: window(max_attn_len, inf)
    target sees target: self
    sizes { context = 6; history = 974; target = 20; pad = 24 }
}
""",
    "hstu_groups": """
mask hstu_groups {
    region context
    region history
    region target*
    region pad
    context sees context, history: all
    history sees context, history: causal
    target sees context, history: all
    target sees target: same(target) & causal
    sizes { context = 6; history = 884; target = [11] * 10; pad = 24 }
}
""",
    "hstu_batch": """
mask hstu_batch {
    group user* {
        region context
        region history
        region target
        context sees context, history: all
        history sees context, history: causal
        target sees context, history: all
        target sees target: self
    }
    sizes { context = 6; history = [353, 174, 193, 200]; target = 20 }
}
""",
    "interval_table": """
mask interval_table {
    table func[row]
    region text
    text sees text: rows(func)
    sizes { text = 1024 }
}
""",
    "static_realtime_candidates": """
mask static_realtime_candidates {
    table cut[row]
    region static
    region realtime from 0
    region candidate
    all sees static: all
    realtime sees realtime: causal
    candidate sees realtime: until(cut[row])
    candidate sees candidate: self
    sizes { static = 600; realtime = 200; candidate = 224 }
}
""",
    "sid_beams": """
mask sid_beams {
    group user* {
        region history
        region beam*
        history sees history: causal
        beam sees history: all
        beam sees beam: same(beam) & causal
    }
    region pad
    sizes { history = [300, 212, 256]; beam = [4] * 20; pad = 16 }
}
""",
    "clear": """
mask clear {
    param radius = 8
    region text
    region image[height, width] order tile(8, 16)
    text sees text, image: all
    image sees text: all
    image sees image: disc(radius)
    sizes { text = 64; height = 24; width = 32 }
}
""",
    "clear_r8": """
mask clear_r8 {
    param radius = 4
    region text
    region image[height, width] order tile(8, 16)
    text sees text, image: all
    image sees text: all
    image sees image: disc(radius)
    sizes { text = 64; height = 24; width = 32 }
}
""",
    "clear_r32": """
mask clear_r32 {
    param radius = 12
    region text
    region image[height, width] order tile(8, 16)
    text sees text, image: all
    image sees text: all
    image sees image: disc(radius)
    sizes { text = 64; height = 24; width = 32 }
}
""",
    "natten_2d": """
mask natten_2d {
    region image[h, w]
    image sees image: window(h, 5, 4, edge=shift) & window(w, 5, 4, edge=shift)
    sizes { h = 32; w = 32 }
}
""",
    "natten_gym": """
mask natten_gym {
    region image[h, w]
    image sees image: window(h, 4, 4, edge=shift) & window(w, 4, 4, edge=shift)
    sizes { h = 32; w = 32 }
}
""",
    "sta_3d": """
mask sta_3d {
    region video[tile_t, tile_y, tile_x, token]
    region text
    region pad
    video sees video: window(tile_t, 0, 0, edge=shift) & window(tile_y, 1, 0, edge=shift)
                    & window(tile_x, 1, 1, edge=shift)
    all sees text: all
    text, pad sees video: all
    sizes { tile_t = 2; tile_y = 4; tile_x = 4; token = 32; text = 50; pad = 14 }
}
""",
    "svg_spatial": """
mask svg_spatial {
    region prompt
    region video
    prompt sees all: all
    video sees prompt: all
    video sees video: window(95, 95)
    sizes { prompt = 64; video = 960 }
}
""",
    "frame_block_causal": """
mask frame_block_causal {
    region video[frame, token]
    region pad
    video sees video: upto(frame / 3)
    pad sees pad: self
    sizes { frame = 21; token = 48; pad = 16 }
}
""",
    "frame_block_causal_local": """
mask frame_block_causal_local {
    region video[frame, token]
    region pad
    video sees video: window(frame / 3, 2, 0)
    pad sees pad: self
    sizes { frame = 21; token = 48; pad = 16 }
}
""",
    "natten_1d": """
mask natten_1d {
    region line[x]
    line sees line: window(x, 64, 63, edge=shift, stride=16)
    sizes { x = 1024 }
}
""",
}


def tables_of(name: str) -> dict[str, Any]:
    """What is bound to the tables of a mask: the numbers that its predicate takes."""
    params = PREDICATES[name].params
    match name:
        case "decode_ragged":
            return {"kv_len": params["kv_len"].tolist()}
        case "hash_sparse":
            return {"order": params["order"].tolist()}
        case "tree_verify":
            return {"parent": params["parent"]}
        case "dflash":
            return {"anchor": params["anchors"]}
        case "interval_table":
            return {"func": params["func"].tolist()}
        case "static_realtime_candidates":
            return {"cut": params["order_cut"].tolist()}
    return {}
