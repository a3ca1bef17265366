"""The worker of `model-garden train-vision --engine transformers` and `--engine unsloth`.

`model-garden` starts it (`python -m model_garden.worker run.json`), sends it the batches of one step at a time, and decides when to
evaluate, save and end. The worker holds the model and takes the steps. Nothing here is imported by `import model_garden`.
"""
