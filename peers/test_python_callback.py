"""The callback when things go wrong: trainings that raise or go on later, folders that cannot be written, and ranks of which one must stop."""

import copy
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_trainer import Line, Rows, trainer
from transformers import TrainerCallback

from model_garden import ConfigError
from model_garden.hf import MemoryCleanupCallback, MemoryMonitorCallback

# What a program of its own begins with; this folder is on its path. A suite in the background of a script ignores Ctrl-C.
BEGINNING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import torch
from transformers import TrainerCallback
from model_garden.hf import MemoryMonitorCallback, resident_bytes
from small_trainer import Rows, trainer
"""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"}


class At(TrainerCallback):
    """Does something when a step has ended."""

    def __init__(self, step, work):
        self.step, self.work = step, work

    def on_step_end(self, args, state, control, **given):
        if state.global_step == self.step:
            self.work()


def fail():
    raise RuntimeError("no more data")


def test_a_training_that_goes_on_keeps_the_trace_of_its_first_part(tmp_path, capsys):
    trainer(tmp_path, Rows(), MemoryMonitorCallback(every=2, quiet=True), max_steps=20, save_strategy="steps", save_steps=20).train()
    first = (tmp_path / "memory.jsonl").read_text()
    trainer(tmp_path, Rows(), MemoryMonitorCallback(every=2), max_steps=40).train(resume_from_checkpoint=True)
    assert " in 20 steps" in capsys.readouterr().out, "those of the first part are not its own"
    assert (tmp_path / "memory-1.jsonl").read_text() == first
    assert (tmp_path / "memory-1.html").exists()
    steps = [sample.get("step") for sample in map(json.loads, (tmp_path / "memory.jsonl").read_text().splitlines()[1:])]
    assert steps[0] is None and steps[1] in (21, 22) and steps[-1] == 40


def test_a_training_that_raised_is_summed_up_before_the_next_one(tmp_path, capsys):
    callback = MemoryMonitorCallback(every=2)
    with pytest.raises(RuntimeError, match="no more data"):
        trainer(tmp_path, Rows(), callback, At(13, fail)).train()
    assert "Memory of" not in capsys.readouterr().out
    assert callback.assessment.samples >= 6, "what is known by then can be asked for"
    trainer(tmp_path / "next", Rows(), callback).train()
    said = capsys.readouterr().out
    assert said.count("Memory of") == 2 and (tmp_path / "memory.html").exists() and (tmp_path / "next" / "memory.html").exists()


@pytest.mark.parametrize("end", ["raise RuntimeError('no more data')", "os.kill(os.getpid(), 2)", "sys.exit(3)"])
def test_a_training_that_never_ends_is_summed_up_when_the_program_does(tmp_path, end):
    script = f"""{BEGINNING}
class Ends(TrainerCallback):
    def on_step_end(self, args, state, control, **given):
        if state.global_step == 13:
            {end}

trainer({str(tmp_path)!r}, Rows(), MemoryMonitorCallback(every=2), Ends()).train()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode != 0
    assert "Memory of" in done.stdout and f"Report: {tmp_path}" in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "memory.html").exists()


def test_files_that_cannot_be_written_end_no_training(tmp_path, caplog):
    (tmp_path / "memory.jsonl").write_text("mine")
    callback = MemoryMonitorCallback(every=2, quiet=True)
    assert trainer(tmp_path, Rows(), callback).train().global_step == 20
    assert (tmp_path / "memory.jsonl").read_text() == "mine" and "goes on without its trace" in caplog.text
    assert callback.assessment.samples >= 10
    (tmp_path / "file").write_text("")
    nowhere = {"trace": tmp_path / "file" / "memory.jsonl", "report": tmp_path / "file" / "memory.html"}
    assert trainer(tmp_path, Rows(), MemoryMonitorCallback(every=2, quiet=True, **nowhere)).train().global_step == 20


def test_the_page_is_written_where_the_folder_was_cleaned_away(tmp_path):
    folder = tmp_path / "run"
    trainer(folder, Rows(), MemoryMonitorCallback(every=2, quiet=True), At(10, lambda: shutil.rmtree(folder))).train()
    assert (folder / "memory.html").exists()


def test_standard_output_that_is_closed_ends_no_training(tmp_path, monkeypatch):
    closed = open(os.devnull, "w")
    closed.close()
    callback = MemoryMonitorCallback(every=2, file=closed)
    assert trainer(tmp_path, Rows(), callback).train().global_step == 20
    assert callback.assessment is not None


@pytest.mark.parametrize("settings", [{"every": 0}, {"stop_before": "28 apples"}, {"explain": "sometimes"}])
def test_settings_that_make_no_sense_are_refused_before_the_model_is_loaded(settings):
    from model_garden.lightning import MemoryMonitorCallback as LightningCallback

    for callback in (MemoryMonitorCallback, LightningCallback):
        with pytest.raises(ConfigError, match=next(iter(settings))):
            callback(**settings)


def test_lines_stand_beside_the_trainer_s_progress_bar(tmp_path, monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    trainer(tmp_path, Rows(), MemoryMonitorCallback(every=5), MemoryCleanupCallback(every=10), disable_tqdm=False).train()
    said = terminal.getvalue()
    assert re.findall(r"[\r\n]Step (\d+): [^\r\n]*\n", said) == ["5", "10", "15", "20"]
    assert re.search(r"[\r\n]Report: [^\r\n]*\n", said) and re.search(r"[\r\n]2 clean-ups gave back [^\r\n]*\n", said)


def test_the_batch_that_the_trainer_found_is_the_one_that_counts(tmp_path):
    class Small(Line):
        def forward(self, x, labels=None):
            if len(x) > 4:
                raise RuntimeError("CUDA out of memory.")
            return super().forward(x, labels)

    callback = MemoryMonitorCallback(every=2, quiet=True)
    run = trainer(tmp_path, Rows(), callback, model=Small(), per_device_train_batch_size=8, auto_find_batch_size=True)
    run.train()
    facts = callback.assessment.to_dict()["facts"]
    assert facts["samples_per_step"] == run.state.train_batch_size <= 4


def test_a_cleanup_counts_each_training_by_itself(tmp_path, capsys):
    callback = MemoryCleanupCallback(every=10)
    for name in ("first", "second"):
        trainer(tmp_path / name, Rows(), callback).train()
    assert capsys.readouterr().out.count("2 clean-ups gave back") == 2
    with pytest.raises(ConfigError, match="every=1.5"):
        MemoryCleanupCallback(every=1.5)


def test_a_callback_is_copied_without_its_monitor(tmp_path):
    callback, copies = MemoryMonitorCallback(every=2, quiet=True), []
    trainer(tmp_path, Rows(), callback, At(5, lambda: copies.append(copy.deepcopy(callback)))).train()
    assert copies[0].monitor is None and copies[0].every == 2


HF = """
limit = resident_bytes() + 400_000_000
callback = MemoryMonitorCallback(every=2, stop_before=limit, explain=False, quiet=True)
run = trainer(folder, Rows(keeps=4_000_000 if rank == 1 else 0), callback, max_steps=400)
run.train()
open(f"{folder}/../rank-{rank}", "w").write(str(run.state.global_step))
"""
LIGHTNING = """
import lightning
from model_garden.lightning import MemoryMonitorCallback

class Keeps(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.rows = torch.nn.Linear(8, 1), Rows(keeps=8_000_000 if int(os.environ["RANK"]) == 1 else 0)

    def training_step(self, batch, _):
        return self.layer(self.rows[0]["x"]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

run = lightning.Trainer(
    max_steps=400, accelerator="cpu", devices=2, strategy="ddp", logger=False, default_root_dir=folder, enable_progress_bar=False,
    enable_model_summary=False, enable_checkpointing=False,
    callbacks=[MemoryMonitorCallback(every=2, stop_before=resident_bytes() + 400_000_000, explain=False, quiet=True)],
)
run.fit(Keeps(), torch.utils.data.DataLoader(torch.ones(4000, 8), batch_size=2))
open(f"{folder}/../rank-{rank}", "w").write(str(run.global_step))
"""


@pytest.mark.parametrize("loop", [HF, LIGHTNING], ids=["hf", "lightning"])
def test_all_ranks_stop_at_the_step_at_which_one_must(tmp_path, loop):
    script = tmp_path / "train.py"
    script.write_text(f"{BEGINNING}\nfolder, rank = {str(tmp_path / 'run')!r}, int(os.environ['RANK'])\n{loop}")
    (tmp_path / "run").mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", script]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    stops = [int((tmp_path / f"rank-{rank}").read_text()) for rank in (0, 1)]
    assert stops[0] == stops[1] and 0 < stops[0] < 400
