"""The model of `--engine transformers`: Hugging Face's own, with an adapter of PEFT."""

from __future__ import annotations

from typing import Any

import torch

from .settings import Settings


def load(settings: Settings) -> torch.nn.Module:
    """The model with what is to be trained of it."""
    from transformers import AutoModelForImageTextToText

    cuda = torch.cuda.is_available()
    quantised = settings.precision in ("four-bit", "eight-bit")
    options: dict[str, Any] = {"dtype": dtype(settings)}
    if quantised:
        options["quantization_config"] = quantisation(settings)
        options["device_map"] = {"": 0 if cuda else "cpu"}
    model = AutoModelForImageTextToText.from_pretrained(settings.base, **options)
    # Nothing is generated here.
    model.config.get_text_config().use_cache = False
    if settings.method == "full":
        model.requires_grad_(True)
        return model
    from peft import PeftModel, prepare_model_for_kbit_training

    if quantised:
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=recomputes(settings))
    return PeftModel.from_pretrained(model, settings.adapter, is_trainable=True)


def dtype(settings: Settings) -> torch.dtype | str:
    """The type of the weights: those that are trained are f32, frozen ones as asked or as stored."""
    if settings.method == "full":
        return torch.float32
    return "auto" if settings.precision == "as-stored" else torch.bfloat16


def quantisation(settings: Settings) -> Any:
    """As the native engine holds them: NF4 with double quantisation, or eight bits."""
    from transformers import BitsAndBytesConfig

    if settings.precision == "eight-bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16
    )


def recomputes(settings: Settings) -> bool:
    """Whether activations are recomputed: if nobody says, on a GPU, whose memory is what runs out first."""
    return torch.cuda.is_available() if settings.recompute is None else settings.recompute
