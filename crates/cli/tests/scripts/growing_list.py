"""Keeps something of every step: a leak."""
import time

kept = []
for step in range(1, 181):
    kept.append(bytearray(400_000))
    print(f"Step {step}: loss {1 / step:.3f}")
    time.sleep(0.01)
