"""Makes the golden files of garden-train from transformers, torch and bitsandbytes.

    python crates/train/tests/goldens/make.py

Needs torch, transformers and bitsandbytes in the Python it runs under; writes beside itself.
"""

import json
import warnings
from pathlib import Path

import bitsandbytes as bnb
import numpy as np
import torch
from transformers import get_scheduler

warnings.filterwarnings("ignore")
HERE = Path(__file__).parent
STEPS = 100


def schedules():
    cases = []
    for shape in ["linear", "cosine", "constant", "constant_with_warmup", "polynomial"]:
        for steps, warmup in [(30, 0), (30, 7), (5, 1), (12, 12) if shape != "polynomial" else (12, 11)]:
            peak = 2e-4
            optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
            scheduler = get_scheduler(shape, optimizer, num_warmup_steps=warmup, num_training_steps=steps)
            rates = []
            for _ in range(steps + 3):
                rates.append(scheduler.get_last_lr()[0])
                optimizer.step()
                scheduler.step()
            cases.append(dict(shape=shape, peak=peak, warmup=warmup, steps=steps, rates=rates))
    (HERE / "schedules.json").write_text(json.dumps(cases, indent=1))


def trainer_state():
    from transformers import TrainerState

    state = TrainerState(
        epoch=0.5, global_step=20, max_steps=40, logging_steps=10, eval_steps=20, save_steps=20, train_batch_size=2,
        num_train_epochs=1, num_input_tokens_seen=5120, best_metric=2.25, best_global_step=20,
        best_model_checkpoint="out/checkpoint-20",
        log_history=[
            {"epoch": 0.25, "grad_norm": 1.5, "learning_rate": 1e-4, "loss": 2.5, "step": 10},
            {"epoch": 0.5, "eval_loss": 2.25, "step": 20},
        ],
    )
    state.total_flos = 0.0
    state.save_to_json(str(HERE / "trainer_state.json"))


def lcg(count, seed):
    """Uniform numbers in [-1, 1) that Rust makes alike: a 32-bit linear congruential generator."""
    state, out = seed, np.empty(count, dtype=np.float32)
    for i in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        out[i] = np.float32((state >> 8) / 2**23 - 1.0)
    return out


def gradient(step, count):
    """Sizes over several powers of ten, some exact zeros, and one block of 256 that is zero for 50 steps."""
    values = lcg(count, 1000 + step)
    values = values * values * values * np.float32(0.01)
    values[::7] = 0
    if step < 50:
        values[256:512] = 0
    return values


def optimizers():
    count, small = 256 * 17 + 100, 300
    out = {}
    for name, make in [
        ("adamw", lambda p: torch.optim.AdamW(p, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05, foreach=False)),
        ("adamw_8bit", lambda p: bnb.optim.AdamW8bit(p, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05)),
    ]:
        params = [torch.nn.Parameter(torch.from_numpy(lcg(n, n).copy())) for n in (count, small)]
        optimizer = make(params)
        for step in range(STEPS):
            for param, n in zip(params, (count, small)):
                param.grad = torch.from_numpy(gradient(step, n).copy())
            optimizer.step()
        for index, param in enumerate(params):
            state = optimizer.state[param]
            out[f"{name}.{index}.param"] = param.detach().numpy()
            for ours, theirs in [("m", "exp_avg"), ("v", "exp_avg_sq"), ("m", "state1"), ("v", "state2"), ("m_scale", "absmax1"), ("v_scale", "absmax2")]:
                if theirs in state:
                    out[f"{name}.{index}.{ours}"] = state[theirs].numpy()
    from bitsandbytes.functional import create_dynamic_map, quantize_blockwise

    out["map.signed"] = create_dynamic_map(signed=True).numpy()
    out["map.unsigned"] = create_dynamic_map(signed=False).numpy()
    for seed, kind in [(5, "signed"), (6, "unsigned")]:
        values = lcg(4096, seed)
        values = values * values * values * values * values
        values = np.abs(values) if kind == "unsigned" else values
        quantised, state = quantize_blockwise(torch.from_numpy(values), code=torch.from_numpy(out[f"map.{kind}"].copy()), blocksize=256)
        out[f"quantise.{kind}"], out[f"quantise.{kind}.scale"] = quantised.numpy(), state.absmax.numpy()
    from safetensors.numpy import save_file

    save_file({k: np.ascontiguousarray(v) for k, v in out.items()}, HERE / "optimizers.safetensors")


if __name__ == "__main__":
    schedules()
    trainer_state()
    optimizers()
