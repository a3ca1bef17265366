"""The model beside HF and PEFT, live: a step with its gradients, dropout, greedy answers, adapters; another seed every time."""

import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

TARGETS = r"model\.(language_model\.layers|visual\.blocks)\.\d+\..*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj|qkv|proj)"
SIZES = [(100, 60), (57, 140), (84, 84)]
QUESTION = "What's in these pictures?"


@pytest.fixture(scope="module")
def seed():
    seed = int(os.environ.get("PEERS_SEED", random.randrange(1 << 30)))
    print(f"PEERS_SEED={seed}")
    return seed


@pytest.fixture(scope="module")
def folder(garden, tmp_path_factory, seed):
    """A tiny model whose weights are large enough to have opinions."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    garden("init", "--preset", "tiny", "--output", folder)
    model = load_model(folder)
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter[0].numel() ** -0.5)
            elif name.endswith("bias"):
                parameter.normal_(std=0.1)
    small = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".json", ".jinja")}
    model.save_pretrained(folder)
    for name, content in small.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope="module", params=[TARGETS, "all-linear", ["q_proj", "v_proj", "mlp.2"]], ids=["regex", "all-linear", "names"])
def adapter(request, folder, seed, tmp_path_factory):
    """An adapter of PEFT with both sides drawn; its layers chosen in each of PEFT's ways."""
    out = tmp_path_factory.mktemp("adapter")
    config = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.25, target_modules=request.param)
    model = get_peft_model(load_model(folder), config)
    torch.manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.1)
    model.save_pretrained(out)
    return out


@pytest.fixture(scope="module")
def pictures(tmp_path_factory, seed):
    out = tmp_path_factory.mktemp("pictures")
    noise = np.random.default_rng(seed)
    for index, (width, height) in enumerate(SIZES):
        Image.fromarray(noise.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(out / f"{index}.png")
    return sorted(out.iterdir())


def load_model(folder):
    return Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def prompt(processor, pictures):
    content = [{"type": "image"} for _ in pictures] + [{"type": "text", "text": QUESTION}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    images = [Image.open(path) for path in pictures] or None
    return processor(text=[text], images=images, return_tensors="pt")


def their_answer(model, processor, pictures):
    inputs = prompt(processor, pictures)
    out = model.eval().generate(**inputs, do_sample=False, max_new_tokens=24)
    ends = model.generation_config.eos_token_id
    tokens = out[0, inputs["input_ids"].shape[1]:].tolist()
    return [token for token in tokens if token not in (ends if isinstance(ends, list) else [ends])]


def our_answer(garden, folder, pictures, *more):
    images = [argument for path in pictures for argument in ("--image", path)]
    return garden("generate", "--model", folder, *images, "--prompt", QUESTION, "--max-tokens", 24, "--format", "json",
                  *more, as_json=True)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_greedy_answers_are_the_same(garden, folder, pictures, count):
    processor = AutoProcessor.from_pretrained(folder)
    ours = our_answer(garden, folder, pictures[:count])
    assert ours["tokens"] == their_answer(load_model(folder), processor, pictures[:count])
    assert ours["prompt_tokens"] == prompt(processor, pictures[:count])["input_ids"].shape[1]
    assert ours["text"] == processor.tokenizer.decode(ours["tokens"])


def test_an_adapter_of_peft_answers_as_in_peft(garden, folder, adapter, pictures):
    processor = AutoProcessor.from_pretrained(folder)
    model = PeftModel.from_pretrained(load_model(folder), adapter)
    ours = our_answer(garden, folder, pictures[:1], "--adapter", adapter)
    assert ours["tokens"] == their_answer(model, processor, pictures[:1])
    assert ours["tokens"] != our_answer(garden, folder, pictures[:1])["tokens"]


def test_a_temperature_follows_its_seed(garden, folder):
    first, again, other = (
        our_answer(garden, folder, [], "--temperature", 1, "--seed", seed)["tokens"] for seed in (1, 1, 2)
    )
    assert first == again != other


# A step with gradients, with and without dropout.

LABELS = 12


def mix(z):
    z = np.uint64(z)
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def dropout_mask(noise, pair, rows, columns, share):
    """The engine's mask, by its own description: a hash of seed, row and column."""
    with np.errstate(over="ignore"):
        key = mix(np.uint64(noise) ^ mix(np.uint64(2 * pair)))
        row = mix(key + np.arange(rows, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        offset, flip = row.astype(np.uint32), (row >> np.uint64(32)).astype(np.uint32)
        bits = (np.arange(columns, dtype=np.uint32) * np.uint32(0x9E3779B1))[None] + offset[:, None]
        bits = (bits ^ (bits >> np.uint32(16))) * np.uint32(0x7FEB352D)
        bits = (bits ^ (bits >> np.uint32(15))) * np.uint32(0x846CA68B)
        bits = bits ^ (bits >> np.uint32(16)) ^ flip[:, None]
    kept = bits >= np.uint32(int(share * 2**32))
    return torch.from_numpy(kept.astype(np.float32) / np.float32(1 - share))


class OurDropout(torch.nn.Module):
    """Drops what the engine drops. `computed` are the rows that it computes at all: its mask numbers only those."""

    def __init__(self, noise, pair, share, computed=slice(None)):
        super().__init__()
        self.arguments, self.computed = (noise, pair, share), computed

    def forward(self, x):
        noise, pair, share = self.arguments
        flat = x.reshape(-1, x.shape[-1])
        mask = torch.ones_like(flat)
        rows = mask[self.computed]
        mask[self.computed] = dropout_mask(noise, pair, *rows.shape, share)
        return (flat * mask).reshape(x.shape)


def lora_layers(model):
    """Layers with a pair, in the order of computation."""
    order = {name: index for index, name in enumerate(
        ["attn.qkv", "attn.proj", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
         "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "mlp.0", "mlp.2"])}
    layers = [(name, module) for name, module in model.named_modules() if hasattr(module, "lora_dropout")]
    towers = ["visual.blocks", "visual.merger", "language_model"]
    tower = lambda name: next(index for index, tower in enumerate(towers) if tower in name)
    block = lambda name: 0 if "merger" in name else int([p for p in name.split(".") if p.isdigit()][0])
    key = lambda name: (tower(name), block(name), order[".".join(name.split(".")[-2:])])
    return sorted(layers, key=lambda layer: key(layer[0]))


def compact(pixel_values):
    """Back from HF's normalised patches to the bytes they came from, one frame each."""
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073]).view(1, 3, 1)
    deviation = torch.tensor([0.26862954, 0.26130258, 0.27577711]).view(1, 3, 1)
    frames = pixel_values.view(-1, 3, 2, 196)[:, :, 0]
    return ((frames * deviation + mean) * 255).round().to(torch.uint8)


@pytest.mark.parametrize("noise", [None, 12345])
def test_a_step_has_pefts_loss_and_gradients(folder, adapter, pictures, tmp_path, noise):
    config = json.loads((adapter / "adapter_config.json").read_text())
    own = tmp_path / "adapter"
    shutil.copytree(adapter, own)
    if noise is None:
        (own / "adapter_config.json").write_text(json.dumps(config | {"lora_dropout": 0.0}))
    processor = AutoProcessor.from_pretrained(folder)
    model = PeftModel.from_pretrained(load_model(folder), own, is_trainable=True)
    if noise is not None:
        last = f"language_model.layers.{model.config.text_config.num_hidden_layers - 1}."
        for pair, (name, layer) in enumerate(lora_layers(model)):
            # After its attention the last layer goes on with the rows that predict a label only.
            late = last in name and not name.endswith(("q_proj", "k_proj", "v_proj"))
            computed = slice(-LABELS - 1, -1) if late else slice(None)
            layer.lora_dropout["default"] = OurDropout(noise, pair, config["lora_dropout"], computed)
    inputs = prompt(processor, pictures[:2])
    labels = inputs["input_ids"].clone()
    labels[:, :-LABELS] = -100
    output = model.train()(**inputs, labels=labels)
    output.loss.backward()

    patches = compact(inputs["pixel_values"])
    int32 = lambda values: torch.as_tensor(values, dtype=torch.int32).flatten().contiguous()
    save_file({
        "ids": int32(inputs["input_ids"]), "labels": int32(labels), "grids": int32(inputs["image_grid_thw"]),
        "segments": int32([0, labels.shape[1]]), "patches": patches.contiguous(),
    }, tmp_path / "batch.safetensors")
    example = Path(os.environ["MODEL_GARDEN_BIN"]).parent / "examples" / "gradients"
    arguments = [example, folder, own, tmp_path / "batch.safetensors", tmp_path / "gradients.safetensors", noise or 0]
    done = subprocess.run(list(map(str, arguments)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sums = json.loads(done.stdout)
    assert sums["loss"] / sums["tokens"] == pytest.approx(output.loss.item(), rel=1e-5)
    ours = load_file(tmp_path / "gradients.safetensors")
    compared = 0
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        theirs = parameter.grad.flatten()
        own_gradient = ours[name.replace(".default", "")] / sums["tokens"]
        cosine = torch.nn.functional.cosine_similarity(theirs.double(), own_gradient.double(), dim=0).item()
        assert cosine > 0.99999, name
        assert (theirs - own_gradient).abs().max() < 1e-3 * theirs.abs().max(), name
        compared += 1
    assert compared == len(ours) >= 10
