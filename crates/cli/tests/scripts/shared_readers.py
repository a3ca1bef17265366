"""One shared segment that eight workers begin to read one after another, as a dataset of shared tensors: nothing grows."""
import mmap
import os
import signal
import time

MEGABYTES, WORKERS, STEPS = 200, 8, 120
segment = mmap.mmap(-1, MEGABYTES * 1_000_000)
for _ in range(MEGABYTES):
    segment.write(b"\x01" * 1_000_000)
workers = []
for number in range(WORKERS):
    pid = os.fork()
    if pid == 0:
        time.sleep(0.3 + 0.05 * number)
        sum(segment[offset] for offset in range(0, len(segment), mmap.PAGESIZE))
        signal.pause()
    workers.append(pid)
for step in range(1, STEPS + 1):
    print(f"Step {step}: loss 1.0")
    time.sleep(0.02)
for pid in workers:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
