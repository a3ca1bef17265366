"""A list of images that are decoded on first touch and kept, trained on for three epochs: a fill."""
import time

ROWS, ROWS_PER_STEP, EPOCHS, DECODED_BYTES = 120, 2, 3, 400_000


class LazyImage:
    def __init__(self):
        self.pixels = None

    def touch(self):
        if self.pixels is None:
            self.pixels = bytearray(b"\x80") * DECODED_BYTES


dataset = [LazyImage() for _ in range(ROWS)]
steps_per_epoch = ROWS // ROWS_PER_STEP
for step in range(EPOCHS * steps_per_epoch):
    for row in range(ROWS_PER_STEP):
        dataset[(step * ROWS_PER_STEP + row) % ROWS].touch()
    if (step + 1) % 10 == 0:
        # As the HF Trainer logs: the step is in the bar, the epoch in the dictionary.
        print({"loss": 1.0, "epoch": round((step + 1) / steps_per_epoch, 4)})
    total = EPOCHS * steps_per_epoch
    print(f"\r{100 * (step + 1) // total:3d}%|####      | {step + 1}/{total} [00:01<00:02,  9.9it/s]", end="")
    time.sleep(0.01)
