"""A large parent whose idle workers are forked anew for each epoch, as a DataLoader does: nothing grows."""
import os
import signal
import sys
import time

MEGABYTES, WORKERS, EPOCHS, STEPS = 300, 8, 8, 12
data = bytearray(b"\x01") * (MEGABYTES * 1_000_000)
for epoch in range(EPOCHS):
    workers = []
    for _ in range(WORKERS):
        pid = os.fork()
        if pid == 0:
            signal.pause()
        workers.append(pid)
    for step in range(STEPS):
        print(f"Step {epoch * STEPS + step + 1}: loss 1.0")
        time.sleep(0.02)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
