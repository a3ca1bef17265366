"""A program that uses every public name as its types say. `test_typing.py` has it checked; nothing runs it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import model_garden
from model_garden import VisionCollator, VisionDataset
from model_garden.hf import MemoryCleanupCallback, MemoryMonitorCallback, create_memory_logging_callback
from model_garden.lightning import MemoryMonitorCallback as LightningCallback
from model_garden.training import Event

found: model_garden.Assessment = model_garden.analyze("loop.jsonl")
found = model_garden.analyze(np.arange(10), steps=[1, 2], dataset_size=3, limit="32GB", unit="MB")
words: tuple[str, str | None] = (found.verdict, found.rate())
level: int | None = found.plateau.bytes if found.plateau else None
chances: list[float] = [ending.probability for ending in found.endings]
page: Path = found.to_html("page.html")
watched: model_garden.Assessment = model_garden.watch(1, interval="1s", callback=lambda reading: None)


def tell(event: Event) -> None:
    print(event["event"])


report: model_garden.RunReport = model_garden.train(base_model="model", dataset=Path("rows"), output_dir="out", on_event=tell)
verdict: str | None = report.assessment.verdict if report.assessment else None
plan: model_garden.Plan = model_garden.plan(base_model="3b", image_tokens=512)
parts: dict[str, int] = plan.parts
keys: list[str] = [setting["key"] for setting in model_garden.settings()]

with model_garden.MemoryMonitor(every=10, dataset_size=100, samples_per_step=4) as monitor:
    monitor.step()
    stopping: bool = monitor.should_stop
with model_garden.flat_memory() as gate:
    gate.step()


@model_garden.flat_memory(repeat=200)
def work(number: int) -> str:
    return str(number)


text: str = work(3)
rows = VisionDataset("photos", split="train")
row: dict[str, object] = dict(rows[0])
several: list[str] = [one.id for one in rows[:3]]
batch = VisionCollator("model", max_pixels=112 * 112, on_long_row="drop")([rows[0]])
holders = model_garden.Holders()
holders.mark(step=0)
print(holders.explain(step=50), batch["input_ids"], model_garden.__version__)
callbacks = [MemoryMonitorCallback(every=5, stop_before="16GB"), create_memory_logging_callback(every=10), LightningCallback(every=10)]
cleanup = MemoryCleanupCallback(every=50)


def refused() -> str:
    try:
        return ""
    except model_garden.RowError as error:
        return f"{error.row}: {error.reason}"
    except (model_garden.ConfigError, model_garden.TraceError, model_garden.TrainingError, model_garden.GardenError) as error:
        return str(error)
    except model_garden.MemoryGrew as error:
        return f"{error.growth}"
