"""Says which packages an interpreter has, as one line of JSON. Imports none of them but ours, which is quick.

Any Python can read this, so that one that is too old can say so.
"""

import json
import sys

OLDEST = (3, 10)


def version(name):
    """The version of a package, an empty text if it does not say, or None if it is not there."""
    import importlib.metadata
    import importlib.util

    try:
        if importlib.util.find_spec(name) is None:
            return None
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
    except (ImportError, ValueError):
        return None


def words(error):
    return "%s: %s" % (type(error).__name__, error)


def check(names):
    found = {name: version(name) for name in names}
    broken = None
    if found.get("model_garden") is not None:
        try:
            import model_garden

            found["model_garden"] = model_garden.__version__
        except Exception as error:
            broken = words(error)
    cuda = None
    if "unsloth" in found and found.get("torch") is not None:
        try:
            import torch

            cuda = torch.cuda.is_available()
        except Exception as error:
            broken = broken or "torch: " + words(error)
    return {"found": found, "broken": broken, "cuda": cuda}


if sys.version_info < OLDEST:
    answer = {"found": {}, "outdated": "%d.%d.%d" % tuple(sys.version_info[:3])}
else:
    answer = check(sys.argv[1:])
print(json.dumps(answer))
