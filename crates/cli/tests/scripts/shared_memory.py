"""Shared memory segments that are never released: a leak in /dev/shm, mapped by parent and worker."""
import os
import signal
import time
from multiprocessing import resource_tracker, shared_memory

STEPS, SEGMENT = 180, 300_000
read, write = os.pipe()
mapped, has_mapped = os.pipe()
child = os.fork()
if child == 0:
    os.close(write)
    kept = []
    while name := os.read(read, 32).decode().strip():
        segment = shared_memory.SharedMemory(name=name)
        resource_tracker.unregister(segment._name, "shared_memory")  # the parent's to remove
        sum(segment.buf[::4096])
        kept.append(segment)
        os.write(has_mapped, b".")
    os._exit(0)
os.close(read)
segments = []
for step in range(1, STEPS + 1):
    segment = shared_memory.SharedMemory(create=True, size=SEGMENT)
    segment.buf[:] = b"\x02" * SEGMENT
    segments.append(segment)
    os.write(write, segment.name.ljust(32).encode())
    os.read(mapped, 1)
    segment.unlink()  # both have it mapped: the name may go, the memory stays
    print(f"Step {step}: loss 1.0")
    time.sleep(0.01)
os.kill(child, signal.SIGKILL)
os._exit(0)
