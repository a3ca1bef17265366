"""A training loop with the founding bug: images decode on first touch, and the dataset keeps what it decoded.

Needs nothing but Python. Try it under watch:

    model-garden memory run --interval 100ms --dataset-size 200 --samples-per-step 4 -- python3 examples/lazy_images.py
    model-garden memory run --interval 100ms --dataset-size 200 --samples-per-step 4 -- python3 examples/lazy_images.py --fixed
"""

import argparse
import random
import time

IMAGES = 200
PER_STEP = 4
EPOCHS = 3


class LazyImage:
    """Decodes on first touch; `keep` is the bug: the decoded pixels stay for as long as the dataset lives."""

    def __init__(self, size, keep):
        self.size, self.keep, self.pixels = size, keep, None

    def load(self):
        if self.pixels is not None:
            return self.pixels
        pixels = bytearray(b"\x7f" * self.size)
        if self.keep:
            self.pixels = pixels
        return pixels


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fixed", action="store_true", help="decode into a private copy: memory stays flat")
    parser.add_argument("--megabytes", type=float, default=2.0, help="size of one decoded image")
    parser.add_argument("--seconds-per-step", type=float, default=0.06)
    options = parser.parse_args()

    images = [LazyImage(int(options.megabytes * 1e6), keep=not options.fixed) for _ in range(IMAGES)]
    steps_per_epoch = IMAGES // PER_STEP
    order = random.Random(0)
    step = 0
    for _ in range(EPOCHS):
        rows = order.sample(range(IMAGES), IMAGES)
        for start in range(0, IMAGES, PER_STEP):
            for row in rows[start : start + PER_STEP]:
                images[row].load()
            loss = 1.0 / (1 + step)
            time.sleep(options.seconds_per_step)
            step += 1
            print(f"Step {step}: loss {loss:.4f}, epoch {step / steps_per_epoch:.2f}", flush=True)


if __name__ == "__main__":
    main()
