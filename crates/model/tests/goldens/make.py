"""Makes the golden files beside it: Hugging Face + PEFT + bitsandbytes on small random models.

    python make.py            # needs the packages of peers/requirements.txt; takes about a minute

Weights, adapters and pictures are not stored: both sides draw them from the counter-based generator below
(`crates/model/src/random.rs` in Rust), so the files hold only what the other implementation computed from them.
"""

import json
import math
import pathlib
import shutil
import tempfile

import numpy as np
import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from bitsandbytes.functional import dequantize_blockwise, quantize_4bit
from bitsandbytes.nn import Linear4bit
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import BitsAndBytesConfig, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.vision_utils import get_vision_window_index

HERE = pathlib.Path(__file__).parent
GOLDEN_RATIO = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
IMAGE_MEAN = np.array([0.48145466, 0.4578275, 0.40821073], dtype=np.float32)
IMAGE_STD = np.array([0.26862954, 0.26130258, 0.27577711], dtype=np.float32)
ATTENTION_AND_MLP = {
    "lm": r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)",
    "both": r".*(layers|blocks).*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj|qkv|proj)",
}


# The generator: splitmix64 over a counter, keyed by seed and name.


def mix(x):
    x = np.uint64(x) if np.isscalar(x) else x
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fnv1a(name):
    hash = 0xCBF29CE484222325
    for byte in name.encode():
        hash = ((hash ^ byte) * 0x100000001B3) & MASK
    return hash


def bits(seed, name, count):
    """`count` 64-bit words of the stream `name`."""
    with np.errstate(over="ignore"):
        key = mix(np.uint64(seed) ^ mix(fnv1a(name)))
        return mix(key + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN_RATIO))


def normal(seed, name, shape, deviation):
    """Nearly normal numbers: the sum of the four 16-bit parts of a word, centred and scaled."""
    words = bits(seed, name, math.prod(shape))
    parts = sum(((words >> np.uint64(16 * i)) & np.uint64(0xFFFF)).astype(np.int64) for i in range(4))
    centred = (parts - 131070).astype(np.float32)
    scale = np.float32(np.float64(np.float32(deviation)) / (65536.0 / math.sqrt(3.0)))
    return (centred * scale).reshape(shape)


def weight(seed, name, shape):
    """What the test models hold under `name`: numbers that keep activations near one."""
    if "norm" in name or "ln_q" in name:
        return np.float32(1.0) + normal(seed, name, shape, 0.1)
    if name.endswith(".bias") or "lora_B" in name:
        return normal(seed, name, shape, 0.1)
    return normal(seed, name, shape, 1.0 / math.sqrt(math.prod(shape[1:])))


def picture(seed, name, grid):
    """The patches of a picture as bytes [patches, channel * row * column]."""
    count = math.prod(grid)
    return (bits(seed, name, count * 588) & np.uint64(0xFF)).astype(np.uint8).reshape(count, 588)


def pixel_values(patches):
    """As HF's processor lays them out: normalised, every frame twice."""
    pixels = patches.reshape(-1, 3, 1, 14, 14).astype(np.float32)
    mean = (IMAGE_MEAN * np.float32(255)).reshape(1, 3, 1, 1, 1)
    std = (IMAGE_STD * np.float32(255)).reshape(1, 3, 1, 1, 1)
    return torch.from_numpy(np.repeat((pixels - mean) / std, 2, axis=2).reshape(len(patches), 1176))


# The two models and their batches.

MODELS = [
    dict(
        seed=11,
        full=True,
        config=dict(
            text_config=dict(
                hidden_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                intermediate_size=80, vocab_size=160, rms_norm_eps=1e-6, max_position_embeddings=2048,
                rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=[1, 2, 3]),
                bos_token_id=0, eos_token_id=1, pad_token_id=0,
            ),
            vision_config=dict(
                depth=3, hidden_size=32, num_heads=2, intermediate_size=44, out_hidden_size=48,
                fullatt_block_indexes=[1], window_size=112,
            ),
            image_token_id=152, video_token_id=153, vision_start_token_id=154, vision_end_token_id=155,
            tie_word_embeddings=True,
        ),
    ),
    dict(
        seed=12,
        config=dict(
            text_config=dict(
                hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1,
                intermediate_size=72, vocab_size=96, rms_norm_eps=1e-5, max_position_embeddings=2048,
                rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[2, 3, 3]),
                bos_token_id=0, eos_token_id=1, pad_token_id=0,
            ),
            vision_config=dict(
                depth=4, hidden_size=24, num_heads=3, intermediate_size=36, out_hidden_size=64,
                fullatt_block_indexes=[1, 3], window_size=56,
            ),
            image_token_id=88, video_token_id=89, vision_start_token_id=90, vision_end_token_id=91,
            tie_word_embeddings=False,
        ),
    ),
]

# Text runs are numbers of tokens, tuples are grids in patches; the last text run is the answer (its tokens have labels).
ROWS = {
    "one": [3, (1, 6, 10), 4, 9],
    "three": [2, (1, 18, 4), 1, (1, 8, 8), 3, (1, 2, 2), 2, 7],
    "text": [11, 6],
}
BATCHES = {"one": ["one"], "three": ["three"], "text": ["text"], "mixed": ["three", "text", "one"]}
ADAPTERS = {
    "lm": dict(r=4, lora_alpha=8, use_rslora=False),
    "both": dict(r=3, lora_alpha=6, use_rslora=True),
}


def row(seed, config, kind):
    """Token ids, labels and grids of one row."""
    *parts, answer = ROWS[kind]
    total = sum(part for part in parts if isinstance(part, int)) + answer
    text = iter((2 + bits(seed, f"text.{kind}", total) % np.uint64(config.image_token_id - 2)).tolist())
    ids, grids = [], []
    for part in parts:
        if isinstance(part, int):
            ids += [next(text) for _ in range(part)]
        else:
            grids.append(list(part))
            ids += [config.vision_start_token_id] + [config.image_token_id] * (math.prod(part) // 4)
            ids += [config.vision_end_token_id]
    labels = [-100] * len(ids) + (tail := list(text))
    return dict(tokens=ids + tail, labels=labels, grids=grids)


def batch_inputs(seed, config, rows):
    longest = max(len(row["tokens"]) for row in rows)
    pad = lambda values, fill: values + [fill] * (longest - len(values))
    ids = torch.tensor([pad(row["tokens"], 0) for row in rows])
    inputs = dict(
        input_ids=ids,
        attention_mask=torch.tensor([pad([1] * len(row["tokens"]), 0) for row in rows]),
        labels=torch.tensor([pad(row["labels"], -100) for row in rows]),
        mm_token_type_ids=(ids == config.image_token_id).long(),
    )
    grids = [grid for row in rows for grid in row["grids"]]
    if grids:
        patches = [picture(seed, f"picture.{i}", grid) for i, grid in enumerate(grids)]
        inputs["pixel_values"] = pixel_values(np.concatenate(patches))
        inputs["image_grid_thw"] = torch.tensor(grids)
    return inputs


def make_model(spec):
    config = Qwen2_5_VLConfig(**spec["config"])
    model = Qwen2_5_VLForConditionalGeneration._from_config(config, attn_implementation="eager").float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(weight(spec["seed"], name, tuple(parameter.shape))))
    return config, model


def add_adapter(spec, model, kind, zero_b=False):
    settings = LoraConfig(target_modules=ATTENTION_AND_MLP[kind], lora_dropout=0.0, **ADAPTERS[kind])
    peft = get_peft_model(model, settings)
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if "lora_" in name:
                values = weight(spec["seed"], peft_name(name), tuple(parameter.shape))
                parameter.copy_(torch.from_numpy(values))
                if zero_b and "lora_B" in name:
                    parameter.zero_()
    return peft.train()


def peft_name(name):
    return name.replace(".default.", ".")


class Recorder:
    """Keeps the outputs of chosen modules of one forward."""

    def __init__(self, base):
        self.seen, self.handles = {}, []
        visual, language = base.model.visual, base.model.language_model
        modules = {f"vision.block.{i}": block for i, block in enumerate(visual.blocks)}
        modules |= {"vision.patches": visual.patch_embed, "vision.merged": visual}
        modules |= {f"text.layer.{i}": layer for i, layer in enumerate(language.layers)}
        modules |= {"text.norm": language.norm}
        for name, module in modules.items():
            self.handles.append(module.register_forward_hook(self.hook(name)))

    def hook(self, name):
        def keep(module, inputs, output):
            if name == "vision.merged":
                output = output.pooler_output
            self.seen[name] = (output[0] if isinstance(output, tuple) else output).detach().clone()

        return keep

    def close(self):
        for handle in self.handles:
            handle.remove()
        return self.seen


def run_case(model, base, inputs):
    """One forward and backward: hidden states and logits without padding, loss, gradients."""
    recorder = Recorder(base)
    output = model(**inputs)
    output.loss.backward()
    mask = inputs["attention_mask"].bool()
    out = {}
    for name, value in recorder.close().items():
        out[name] = value[mask] if name.startswith("text.") else value
    shifted = torch.full_like(inputs["labels"], -100)
    shifted[:, :-1] = inputs["labels"][:, 1:]
    out["logits"] = output.logits.detach()[shifted != -100]
    out["loss"] = output.loss.detach().reshape(1)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            out[f"grad.{peft_name(name)}"] = parameter.grad.clone()
            parameter.grad = None
    return out


def prefixed(prefix, tensors):
    return {f"{prefix}.{name}": value.contiguous() for name, value in tensors.items()}


def model_goldens(index, spec):
    tensors = {}
    config, _ = make_model(spec)
    rows = {kind: row(spec["seed"], config, kind) for kind in ROWS}
    batches = {name: [rows[kind] for kind in kinds] for name, kinds in BATCHES.items()}
    for adapter in ADAPTERS:
        for name, batch in batches.items():
            base = make_model(spec)[1]
            model = add_adapter(spec, base, adapter)
            tensors |= prefixed(f"{name}.{adapter}", run_case(model, base, batch_inputs(spec["seed"], config, batch)))
    base = make_model(spec)[1].train()
    if spec.get("full"):
        full = run_case(base, base, batch_inputs(spec["seed"], config, batches["mixed"]))
        tensors |= prefixed("mixed.full", {k: v for k, v in full.items() if k.startswith("grad.") or k == "loss"})
    for name, batch in batches.items():
        inputs = batch_inputs(spec["seed"], config, batch)
        positions, _ = base.model.get_rope_index(
            inputs["input_ids"], inputs["mm_token_type_ids"], inputs.get("image_grid_thw"),
            attention_mask=inputs["attention_mask"],
        )
        tensors[f"{name}.positions"] = positions[:, inputs["attention_mask"].bool()].T.contiguous().int()
    save_file(tensors, HERE / f"model{index}.safetensors")
    return dict(
        seed=spec["seed"], config=json.loads(config.to_json_string(use_diff=False)), rows=rows, batches=BATCHES,
        adapters={k: v | dict(target_modules=ATTENTION_AND_MLP[k]) for k, v in ADAPTERS.items()},
        curve=curve(spec, config, batches), greedy=greedy(spec, config, rows["one"]),
    )


def curve(spec, config, batches, steps=100, lr=1e-3):
    """Losses of a training run over the batches in turn: fresh adapter (B zero), AdamW."""
    model = add_adapter(spec, make_model(spec)[1], "both", zero_b=True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr, weight_decay=0.01)
    order = list(batches)
    losses = []
    for step in range(steps):
        loss = model(**batch_inputs(spec["seed"], config, batches[order[step % len(order)]])).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return dict(adapter="both", batches=order, learning_rate=lr, weight_decay=0.01, losses=losses)


def greedy(spec, config, row, tokens=24):
    """The continuation HF chooses after a row's prompt, and how close its closest choice was."""
    _, model = make_model(spec)
    inputs = batch_inputs(spec["seed"], config, [row])
    prompt = row["labels"].count(-100)
    for key in ("input_ids", "attention_mask", "mm_token_type_ids"):
        inputs[key] = inputs[key][:, :prompt]
    inputs.pop("labels")
    out = model.eval().generate(
        **inputs, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, output_logits=True,
        return_dict_in_generate=True, pad_token_id=0, eos_token_id=None,
    )
    margins = [float((top := logits[0].topk(2).values)[0] - top[1]) for logits in out.logits]
    return dict(prompt=row["tokens"][:prompt], grids=row["grids"], tokens=out.sequences[0, prompt:].tolist(),
                closest_margin=min(margins))


# Positions and windows of fifty grids.


def grid_goldens():
    _, model = make_model(MODELS[0])
    image = model.config.image_token_id
    sides = lambda name, count: (2 * (1 + bits(5, name, count) % np.uint64(11))).tolist()
    tensors, cases = {}, []
    for index in range(50):
        pictures = 1 + index % 3
        grids = [[1, h, w] for h, w in zip(sides(f"h{index}", pictures), sides(f"w{index}", pictures))]
        ids = [7] * (index % 5)
        for grid in grids:
            ids += [8] + [image] * (math.prod(grid) // 4) + [9] * (1 + index % 2)
        tokens = torch.tensor([ids])
        positions, _ = model.model.get_rope_index(tokens, (tokens == image).long(), torch.tensor(grids))
        tensors[f"{index}.positions"] = positions[:, 0].T.contiguous().to(torch.int16)
        window = 1 + index % 5
        order, bounds = get_vision_window_index(torch.tensor(grids), 2, window * 28, 14)
        tensors[f"{index}.order"] = order.to(torch.int16)
        tensors[f"{index}.bounds"] = bounds.to(torch.int16)
        cases.append(dict(tokens=ids, grids=grids, window=window))
    save_file(tensors, HERE / "grids.safetensors")
    return dict(image_token=image, cases=cases)


# bitsandbytes: one checkpoint as HF saves it, one of chosen layers and plain scales, and what the first dequantises to.

QUANTIZED = ("self_attn.q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "attn.qkv", "attn.proj")
DEQUANTIZED = [
    "model.language_model.layers.0.self_attn.q_proj.weight",
    "model.language_model.layers.0.self_attn.k_proj.weight",
    "model.language_model.layers.0.mlp.down_proj.weight",
    "model.visual.blocks.0.attn.qkv.weight",
    "model.visual.blocks.0.mlp.gate_proj.weight",
    "model.visual.merger.mlp.2.weight",
]
BEFORE_THE_MERGER = "base_model.model.model.visual.blocks.0.attn.qkv.lora_A.weight"


def flat_dequantize(packed, state):
    """bitsandbytes' generic code, in f32. Its CPU kernel (0.50) restarts blocks at each row, which is wrong for matrices
    whose rows are not multiples of 64 (such as the vision tower's down_proj); CUDA and this code agree."""
    scales = dequantize_blockwise(state.absmax, state.state2) + state.offset
    return _dequantize_4bit_compute(packed.reshape(-1), scales, state.code, 64, state.shape, torch.float32)


def empty_folder(name):
    shutil.rmtree(HERE / name, ignore_errors=True)
    (HERE / name).mkdir()
    return HERE / name


def bnb_nested_golden():
    """A model that HF quantised and saved by itself: every linear layer but the head, the merger's too."""
    spec, folder = MODELS[0], empty_folder("bnb-nested")
    settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
    with tempfile.TemporaryDirectory() as plain:
        make_model(spec)[1].to(torch.bfloat16).save_pretrained(plain)
        quantized = Qwen2_5_VLForConditionalGeneration.from_pretrained(
            plain, dtype=torch.bfloat16, device_map="cpu", quantization_config=settings
        )
    quantized.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
    values = {name: parameter.detach().float() for name, parameter in quantized.named_parameters()}
    for name, module in quantized.named_modules():
        if isinstance(module, Linear4bit):
            values[f"{name}.weight"] = flat_dequantize(module.weight.data, module.weight.quant_state)
    config, model = make_model(spec)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values[name])
    inputs = batch_inputs(spec["seed"], config, [row(spec["seed"], config, "one")])
    computed = run_case(add_adapter(spec, model, "both"), model, inputs)
    kept = {name: values[name] for name in DEQUANTIZED}
    kept |= prefixed("one.both", {name: computed[name] for name in ("loss", f"grad.{BEFORE_THE_MERGER}")})
    save_file({name: value.contiguous() for name, value in kept.items()}, HERE / "bnb-dequantized.safetensors")


def bnb_plain_golden():
    """The layers that we quantise, with plain scales."""
    _, model = make_model(MODELS[0])
    folder = empty_folder("bnb-plain")
    state = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        value = parameter.to(torch.bfloat16)
        if name.endswith(".weight") and any(part in name for part in QUANTIZED):
            packed, quant_state = quantize_4bit(value, blocksize=64, quant_type="nf4", compress_statistics=False)
            state[name] = packed
            state |= {f"{name}.{key}": tensor for key, tensor in quant_state.as_dict(packed=True).items()}
        else:
            state[name] = value
    save_file({k: v.contiguous() for k, v in state.items()}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads(model.config.to_json_string(use_diff=False))
    config["dtype"] = "bfloat16"
    config["quantization_config"] = dict(
        quant_method="bitsandbytes", load_in_4bit=True, load_in_8bit=False, bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=False, bnb_4bit_compute_dtype="bfloat16", bnb_4bit_quant_storage="uint8",
    )
    (folder / "config.json").write_text(json.dumps(config, indent=1))


def adapter_golden():
    """An adapter folder as PEFT itself writes it."""
    folder = HERE / "adapter"
    shutil.rmtree(folder, ignore_errors=True)
    add_adapter(MODELS[0], make_model(MODELS[0])[1], "both").save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)


def main():
    torch.manual_seed(0)
    torch.set_num_threads(2)
    manifest = dict(models=[model_goldens(i, spec) for i, spec in enumerate(MODELS)], grids=grid_goldens())
    bnb_nested_golden()
    bnb_plain_golden()
    adapter_golden()
    (HERE / "goldens.json").write_text(json.dumps(manifest, separators=(",", ":")) + "\n")
    sizes = {str(p.relative_to(HERE)): p.stat().st_size for p in sorted(HERE.rglob("*")) if p.is_file()}
    print(json.dumps(sizes, indent=1), f"\ntotal {sum(sizes.values()):,} bytes")
    for model in manifest["models"]:
        print("greedy", model["greedy"]["tokens"], "closest margin", model["greedy"]["closest_margin"])
        print("curve", model["curve"]["losses"][0], model["curve"]["losses"][-1])


if __name__ == "__main__":
    main()
