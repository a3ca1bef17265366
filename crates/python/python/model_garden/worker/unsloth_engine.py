"""The model of `--engine unsloth`: Unsloth's FastVisionModel, on a GPU with CUDA.

Written by Unsloth's documentation and not yet tried: the project has no GPU to run it on.
"""

from __future__ import annotations

import os

import torch

from .settings import Refused, Settings


def load(settings: Settings) -> torch.nn.Module:
    """The model with what is to be trained of it."""
    if not torch.cuda.is_available():
        raise Refused("engine unsloth needs a GPU with CUDA, and PyTorch finds none: engine transformers does without")
    # Evaluation reads the logits, which Unsloth otherwise does not keep.
    os.environ.setdefault("UNSLOTH_RETURN_LOGITS", "1")
    from unsloth import FastVisionModel

    model, _ = FastVisionModel.from_pretrained(
        settings.base,
        max_seq_length=settings.max_seq_length,
        load_in_4bit=settings.precision == "four-bit",
        load_in_8bit=settings.precision == "eight-bit",
        full_finetuning=settings.method == "full",
        use_gradient_checkpointing=False if settings.recompute is False else "unsloth",
    )
    if settings.lora is not None:
        model = FastVisionModel.get_peft_model(
            model,
            r=settings.lora["rank"],
            lora_alpha=settings.lora["alpha"],
            lora_dropout=settings.lora["dropout"],
            use_rslora=settings.lora["rslora"],
            target_modules=settings.lora["target_modules"],
            bias="none",
            random_state=settings.seed,
        )
        begin_with(model, settings)
    FastVisionModel.for_training(model)
    return model


def begin_with(model: torch.nn.Module, settings: Settings) -> None:
    """Gives the adapter the values that every engine begins with."""
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    values = load_file(f"{settings.adapter}/adapter_model.safetensors")
    wrong = set_peft_model_state_dict(model, values).unexpected_keys
    if wrong:
        raise Refused(f"Unsloth's model has no place for {len(wrong)} tensors of the adapter, such as {wrong[0]}")
