"""Writes nf4.json: tensors quantised by bitsandbytes on one CPU thread, as bit patterns.

Run under a Python with torch, numpy and bitsandbytes:  python make_nf4.py
"""
import json
import pathlib

import bitsandbytes
import bitsandbytes.functional as F
import numpy as np
import torch

torch.set_num_threads(1)


def values(count, seed):
    """The values themselves are computed in integers, so that the Rust test makes the same ones."""
    i = np.arange(count, dtype=np.uint64)
    mixed = (i * np.uint64(6364136223846793005) + np.uint64(seed) * np.uint64(1442695040888963407)) & np.uint64(2**64 - 1)
    top = (mixed >> np.uint64(40)).astype(np.int64) - 2**23
    x = top.astype(np.float32) / np.float32(2**23)
    return torch.from_numpy(x * x * x)


def digest(array):
    """FNV-1a over the bytes: the large parts are compared by it."""
    state = 0xCBF29CE484222325
    for byte in np.ascontiguousarray(array).tobytes():
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return f"{state:016x}"


cases = []
for count, seed in [(64, 1), (130, 2), (64 * 37, 3), (64 * 256, 4), (64 * 300 + 11, 5), (64 * 1300, 6)]:
    w = values(count, seed)
    packed, nested = F.quantize_4bit(w, blocksize=64, compress_statistics=True, quant_type="nf4")
    _, plain = F.quantize_4bit(w, blocksize=64, compress_statistics=False, quant_type="nf4")
    back = F.dequantize_4bit(packed, nested)
    bits = lambda t: t.detach().numpy().view(np.uint32).reshape(-1).tolist()
    cases.append(dict(
        count=count, seed=seed, offset=bits(nested.offset.reshape(1))[0],
        packed=digest(packed.numpy()), plain_scales=digest(plain.absmax.numpy()),
        scale_codes=digest(nested.absmax.numpy()), nested_scales=bits(nested.state2.absmax),
        values=digest(back.numpy())))
out = dict(bitsandbytes=bitsandbytes.__version__, torch=torch.__version__,
           dynamic_map=F.create_dynamic_map().numpy().view(np.uint32).tolist(), cases=cases)
pathlib.Path(__file__).with_name("nf4.json").write_text(json.dumps(out) + "\n")
