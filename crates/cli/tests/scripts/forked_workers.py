"""A flat parent whose forked workers keep what they load: a leak in the workers."""
import os
import time

ballast = bytearray(b"\x01") * 30_000_000  # the parent's own, shared by all until somebody writes to it
pipes = []
for _ in range(3):
    read, write = os.pipe()
    if os.fork() == 0:
        for other in (write, *pipes):
            os.close(other)  # or the workers would keep each other alive
        kept = []
        while os.read(read, 1):
            kept.append(bytearray(150_000))
        os._exit(0)
    os.close(read)
    pipes.append(write)
for step in range(1, 181):
    for pipe in pipes:
        os.write(pipe, b".")
    print(f"Step {step}: loss 1.0")
    time.sleep(0.01)
os._exit(0)  # an interpreter that tidies up copies pages which the workers still share: growth that is not theirs
