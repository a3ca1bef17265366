"""Lets `model-garden memory run --who` ask this interpreter who holds its memory.

Python imports this module as it starts. It opens a line to the supervisor and hands over to the `sitecustomize` that it stands before,
if there is one. Whatever fails here is none of the program's business. Any Python may read this file, Python 2 too.
"""
import os
import sys


def listen(here):
    if sys.version_info < (3, 8) or not hasattr(os, "register_at_fork"):
        return
    sys.path.insert(0, here)
    try:
        from model_garden_who import ask
    finally:
        sys.path.remove(here)
    ask.listen(os.path.join(here, "socket"))


def hand_over(here):
    ours = sys.modules.get("sitecustomize")
    sys.path[:] = [entry for entry in sys.path if entry != here]
    sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        # The import that is under way expects a module of this name.
        sys.modules.setdefault("sitecustomize", ours)


HERE = os.path.dirname(os.path.abspath(__file__))
try:
    listen(HERE)
except Exception:
    pass
hand_over(HERE)
