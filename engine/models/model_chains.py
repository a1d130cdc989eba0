"""Chains of models, as `[then]` of each names the next one: checked when a model is loaded, and found for a request."""

from collections.abc import Callable, Collection, Iterable

from quadriga.engine.models.image_graph import ImageGraph
from quadriga.engine.models.model import Model
from quadriga.engine.models.recognition.model_toml import ThenOptions
from quadriga.engine.models.runners.session import LoadError
from quadriga.proto.errors import ModelNotReady, NotFound
from quadriga.store.model_names import find_model_name, unknown_model_text

MAX_MODELS_BEHIND = 2
"""Maximum models behind one another, without the first."""


def check_chains(
    name: str,
    then: ThenOptions | None,
    names: Collection[str],
    following: Callable[[str], Iterable[ThenOptions]],
) -> None:
    """Check the models behind a model, by what every version of each of them names.

    Args:
        name: The model that is loaded.
        then: The table `[then]` of it.
        names: Names of the models that the server knows, whatever their state.
        following: Returns the tables `[then]` of all versions of one of them.

    Raises:
        LoadError: A model is unknown, is behind itself, or is one too many.
    """
    chains = [] if then is None else [[name, then.model]]
    while chains:
        chain = chains.pop()
        written = chain[-1]
        next_name = find_model_name(written, {*names, name})
        if next_name is None:
            raise LoadError(f"model.toml, [then]: {unknown_model_text(written, names)}")
        text = " → ".join(chain)
        if next_name == name:
            raise LoadError(f"model.toml: expected no model behind itself by [then], got {text}")
        if len(chain) - 1 > MAX_MODELS_BEHIND:
            raise LoadError(
                f"model.toml: expected at most {MAX_MODELS_BEHIND} models behind one another by [then], got {text}"
            )
        chains += [[*chain, table.model] for table in following(next_name)]


def models_behind(model: Model, get: Callable[[str, str | None], Model]) -> list[Model]:
    """Return the models behind a model, in order; none for most.

    Args:
        model: The first one.
        get: Returns a model by name and version; raises as `quadriga.engine.models.repository.ModelRepository.get`.

    Raises:
        ModelNotReady: One of them cannot answer; the text names the model before it.
    """
    chain: list[Model] = []
    while (then := model.recognition.written.then) is not None:
        if len(chain) == MAX_MODELS_BEHIND:
            raise ModelNotReady(
                f"expected at most {MAX_MODELS_BEHIND} models behind one another, got one more behind {model.name!r}"
            )
        version = None if then.version is None else str(then.version)
        try:
            behind = get(then.model, version)
        except NotFound as error:
            of_version = "" if version is None else f" version {version}"
            raise ModelNotReady(
                f"model {model.name!r} needs the model behind it, which is not found: {then.model}{of_version}"
            ) from error
        except ModelNotReady as error:
            text = f"model {model.name!r} needs the model behind it: {error}"
            raise ModelNotReady(text, error.retry_after_s) from error
        if not isinstance(behind.image_predictor, ImageGraph):
            raise ModelNotReady(
                f"model {model.name!r} needs a model behind it that takes images, and no prompts, got "
                f"{behind.name!r} of the task {behind.recognition.task}"
            )
        chain.append(behind)
        model = behind
    return chain
