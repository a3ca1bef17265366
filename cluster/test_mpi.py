"""One run in several processes: the same adapter, bit for bit, whatever their number, and whatever happens to them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Ended, adapter, await_step, events, losses, plain, run_flags, start

# Steps that take long enough to be interrupted in the middle of a run.
MANY = {"epochs": 30}


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_any_number_of_processes_makes_the_same_adapter(mpi, garden, alone, tmp_path, processes):
    output = tmp_path / "out"
    done = Ended(mpi.start(processes, run_flags(garden, output)))
    assert done.code == 0, done.stderr
    assert adapter(output) == adapter(alone)
    assert losses(output) == losses(alone)
    evaluated = lambda folder: [(event["step"], event["loss"]) for event in events(folder, "evaluation")]
    assert evaluated(output) == evaluated(alone) and evaluated(alone)
    # Each usable row once an epoch: 26 rows, of which 4 are held out, and some cannot be used.
    rows = lambda folder: [event["rows"] for event in events(folder, "step")]
    assert rows(output) == rows(alone)
    traces = {path.name for path in output.glob("memory*.jsonl")}
    assert traces == {"memory.jsonl", *(f"memory-rank-{rank}.jsonl" for rank in range(1, processes))}


def test_one_voice_and_a_word_about_the_worst(mpi, garden, tmp_path):
    done = Ended(mpi.start(3, run_flags(garden, tmp_path / "out", max_steps=3)))
    assert done.code == 0, done.stderr
    assert done.stderr.count("of 3 processes are") == 1, done.stderr
    logged = [event for event in events(tmp_path / "out", "log") if "group_wait_seconds" in event["values"]]
    assert logged and all(event["values"]["group_slowest_rank"] in (0, 1, 2) for event in logged)


@pytest.fixture(scope="session")
def long_run(garden, tmp_path_factory):
    output = tmp_path_factory.mktemp("long") / "out"
    done = plain(run_flags(garden, output, **MANY))
    assert done.code == 0, done.stderr
    return adapter(output)


def begin(mpi, processes, garden, output):
    """A run that is in its fourth step, with the processes of its ranks."""
    mark = str(output)
    process = mpi.start(processes, run_flags(garden, output, **MANY), GARDEN_TEST=mark)
    await_step(output, 4)
    ranks = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = dict(
                line.split(b"=", 1) for line in (folder / "environ").read_bytes().split(b"\0") if b"=" in line
            )
            command = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        rank = variables.get(b"OMPI_COMM_WORLD_RANK", variables.get(b"PMI_RANK"))
        if rank is not None and variables.get(b"GARDEN_TEST") == mark.encode() and command[0].endswith(b"model-garden"):
            ranks[int(rank)] = int(folder.name)
    assert len(ranks) == processes, ranks
    return process, ranks


def await_end(pids):
    """Waits until nobody is left waiting; Open MPI's daemon ends its processes a moment after mpirun has ended."""
    end = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < end, "a process of the run is still there"
        time.sleep(0.1)


@pytest.mark.parametrize("on", [1, 3])
def test_a_killed_rank_ends_all_and_the_run_goes_on_in_any_number(mpi, garden, long_run, tmp_path, on):
    output = tmp_path / "out"
    process, ranks = begin(mpi, 2, garden, output)
    os.kill(ranks[1], signal.SIGKILL)
    assert Ended(process).code != 0
    await_end(ranks.values())
    done = Ended(mpi.start(on, run_flags(garden, output, **MANY)))
    assert done.code == 0, done.stderr
    assert adapter(output) == long_run


def test_a_scheduler_asks_for_a_checkpoint_and_the_end(openmpi, garden, long_run, tmp_path):
    output = tmp_path / "out"
    process, _ = begin(openmpi, 2, garden, output)
    process.send_signal(signal.SIGUSR1)
    ended = Ended(process)
    assert ended.code == 130, ended.stderr
    last = max(int(path.name.split("-")[1]) for path in output.glob("checkpoint-*"))
    assert last == max(losses(output)), "the checkpoint is that of the last step"
    done = Ended(openmpi.start(3, run_flags(garden, output, **MANY)))
    assert done.code == 0, done.stderr
    assert adapter(output) == long_run


def test_one_rank_is_told_to_end_and_all_do(mpi, garden, long_run, tmp_path):
    output = tmp_path / "out"
    process, ranks = begin(mpi, 3, garden, output)
    os.kill(ranks[2], signal.SIGUSR2)
    ended = Ended(process)
    assert ended.code == 130, ended.stderr
    done = plain(run_flags(garden, output, **MANY))
    assert done.code == 0, done.stderr
    assert adapter(output) == long_run


def test_a_limit_on_one_rank_ends_all_after_a_checkpoint(openmpi, garden, long_run, tmp_path):
    output = tmp_path / "out"
    flags = run_flags(garden, output, **MANY, memory_every=1)
    # The second rank has a child that holds half a gigabyte.
    hog = f"{sys.executable} -c 'held = bytearray(b\"1\" * 600_000_000); import time; time.sleep(600)' & exec \"$@\""
    command = [
        *openmpi.launcher(1), str(openmpi.binary), *flags, "--memory-limit", "8GB", ":",
        "-n", "1", "sh", "-c", hog, "sh", str(openmpi.binary), *flags, "--memory-limit", "500MB",
    ]
    ended = Ended(start(command, openmpi.environment()))
    assert ended.code == 75, ended.stderr
    assert "rank 1: " in ended.stderr, ended.stderr
    assert list(output.glob("checkpoint-*"))
    done = plain(run_flags(garden, output, **MANY))
    assert done.code == 0, done.stderr
    assert adapter(output) == long_run


# What is refused, in words


def refused(ended):
    assert ended.code != 0
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    # On a machine that is busy for long, another process may have spoken as well before the first ended it.
    assert errors, ended.stderr
    return errors[0]


def test_fewer_micro_batches_than_processes(mpi, garden, tmp_path):
    said = refused(Ended(mpi.start(4, run_flags(garden, tmp_path / "out", gradient_accumulation_steps=2))))
    assert "a step has 2 micro-batches, fewer than the 4 processes" in said
    assert "--gradient-accumulation-steps 4" in said
    assert not (tmp_path / "out").exists()


def test_processes_that_would_compute_otherwise(openmpi, garden, tmp_path):
    flags = run_flags(garden, tmp_path / "out")
    other_rate = run_flags(garden, tmp_path / "out", learning_rate=0.002)
    # The second process alone has other instructions, or another setting.
    for change, words in [
        (["env", "MODEL_GARDEN_ISA=portable", openmpi.binary, *flags], "vector-instructions is portable there"),
        ([openmpi.binary, *other_rate], "learning-rate is 0.002 there and 0.001 here"),
    ]:
        command = [*openmpi.launcher(1), openmpi.binary, *flags, ":", "-n", "1", *change]
        said = refused(Ended(start(list(map(str, command)), openmpi.environment())))
        assert "rank 1 is another run than rank 0: " in said and words in said


def test_processes_that_find_other_rows(openmpi, garden, tmp_path):
    other = tmp_path / "rows"
    subprocess.run(["cp", "-r", garden / "rows", other], check=True)
    file = next(other.glob("*.jsonl"))
    file.write_text("\n".join(file.read_text().splitlines()[1:]) + "\n")
    flags = run_flags(garden, tmp_path / "out", dataset="data")
    # Both name the same folder, which holds other rows on the second machine.
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, rows in [(here, garden / "rows"), (there, other)]:
        folder.mkdir()
        (folder / "data").symlink_to(rows)
    command = [
        *openmpi.launcher(1), "env", "-C", str(here), str(openmpi.binary), *flags, ":",
        "-n", "1", "env", "-C", str(there), str(openmpi.binary), *flags,
    ]
    assert "rank 1 has other rows than rank 0" in refused(Ended(start(command, openmpi.environment())))


def test_a_command_without_mpi_does_not_start_many_runs(mpi, garden, tmp_path):
    command = [*mpi.launcher(2), os.environ["MODEL_GARDEN_BIN"], *run_flags(garden, tmp_path / "out")]
    ended = Ended(start(command, mpi.environment()))
    assert ended.code != 0 and not (tmp_path / "out").exists()
    assert "mpirun started 2 processes of this program, which was built without MPI" in ended.stderr


def test_a_command_for_another_mpi_does_not_start_many_runs(garden, tmp_path, openmpi):
    mpich = Path(str(openmpi.binary).replace("openmpi", "mpich"))
    command = [*openmpi.launcher(2), str(mpich), *run_flags(garden, tmp_path / "out")]
    ended = Ended(start(command, openmpi.environment()))
    assert ended.code != 0 and not (tmp_path / "out").exists()
    assert "was built for another MPI than the mpirun that started it" in ended.stderr
