"""What the memory callback costs a training with Hugging Face's Trainer.

    python bench/callback.py [--preset small] [--steps 60] [--every 10]

Needs a Python with peers/requirements.txt and the package (`pip install $(crates/python/build-wheel)`). Trains a model of that shape on
texts and prints the time that the callback took within steps: readings, lines, counts of tensors. A difference of two runs would only
show the machine's noise, so the calls themselves are timed.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time

import torch
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration, Trainer, TrainingArguments

from model_garden.hf import MemoryMonitorCallback


class Timed(MemoryMonitorCallback):
    """Adds up what the calls within the training take."""

    seconds = 0.0

    def on_step_end(self, *arguments, **given):
        begin = time.perf_counter()
        result = super().on_step_end(*arguments, **given)
        self.seconds += time.perf_counter() - begin
        return result


class Texts(torch.utils.data.Dataset):
    def __init__(self, tokens, vocabulary):
        self.ids = torch.randint(5, vocabulary - 10, (256, tokens))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, row):
        return {"input_ids": self.ids[row], "labels": self.ids[row]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="small")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=256)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model_dir = os.path.join(folder, "model")
        subprocess.run(["model-garden", "init", "--preset", options.preset, "--output", model_dir], check=True, stdout=subprocess.DEVNULL)
        model = Qwen2_5_VLForConditionalGeneration.from_pretrained(model_dir)
        vocabulary = len(AutoTokenizer.from_pretrained(model_dir))
        arguments = TrainingArguments(
            output_dir=os.path.join(folder, "run"),
            max_steps=options.steps,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=4,
            report_to="none",
            save_strategy="no",
            use_cpu=True,
            dataloader_pin_memory=False,
            disable_tqdm=True,
        )
        callback = Timed(options.every, explain=False)
        trainer = Trainer(model=model, args=arguments, train_dataset=Texts(options.tokens, vocabulary), callbacks=[callback])
        begin = time.perf_counter()
        trainer.train()
        took = time.perf_counter() - begin
    print(json.dumps({"preset": options.preset, "seconds_a_step": round(took / options.steps, 3), "callback_share": f"{callback.seconds / took:.4%}"}))


if __name__ == "__main__":
    main()
