"""Names of shadows: a version that sees live requests and answers nobody is stored under the name of its model and a suffix.

No folder can have such a name. So what is asked of a model (counts, searches, retention, drift, evaluations) is asked of
what answered requests, and the same questions can be asked of its shadow by this name.
"""

SHADOW_SUFFIX = "~shadow"


def shadow_name(model: str) -> str:
    """Return the name under which inferences of a model's shadow are stored."""
    return model if is_shadow(model) else model + SHADOW_SUFFIX


def is_shadow(name: str) -> bool:
    """Check whether a name is that of a shadow."""
    return name.lower().endswith(SHADOW_SUFFIX)


def live_name(name: str) -> str:
    """Return the name of the model of a shadow; any other name as it is."""
    return name[: -len(SHADOW_SUFFIX)] if is_shadow(name) else name
