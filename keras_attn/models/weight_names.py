"""Names of a model's weights by the layers that hold them, for any kind of Keras model.

`variable.path` cannot be used: it begins with the name of the model, but not if a part was built before the
model, and two variables may have the same path.
"""

import collections
import re

import keras

# One name on the path to a weight. `stem` is the part before the number in a name made by Keras ("dense" in
# "dense_3"), None if the name was given.
_Step = collections.namedtuple("_Step", ["name", "stem"])


def named_weights(model):
    """Every weight of a model once, under a unique name: {name: variable}, in the order of `model.weights`.

    A name joins the names of the layers on the path to the weight, starting with the model's own layers, and
    the name of the weight: "encoder_block_0/self_attention/query/kernel". A layer with several paths is named
    by the first. Siblings with the same name get a number.
    """
    return {"/".join(step.name for step in steps): variable for steps, variable in _weights_by_steps(model)}


def match_names(model, names):
    """The names of a model's weights in a file, {name in the model: name in the file}; None if they differ.

    Names made by Keras depend on the layers that the process made before. If the names are not the same,
    steps with such names are matched by rank, which is the order in which the layers were made. All others
    must be equal.
    """
    ours = [steps for steps, _ in _weights_by_steps(model)]
    if set(names) == {"/".join(step.name for step in steps) for steps in ours}:
        return {name: name for name in names}
    pairs = []
    if not _match([(steps, steps) for steps in ours], [(name.split("/"), name) for name in names], pairs):
        return None
    return {"/".join(step.name for step in steps): name for steps, name in pairs}


def _match(ours, theirs, pairs):
    """Matches all names below one step; appends pairs of steps and a name. Returns whether all have a match.

    Args:
        ours: List of pairs: the remaining steps, and all steps.
        theirs: List of pairs: the remaining parts of a name, and the whole name.
    """
    ours_below = _group(ours)
    theirs_below = _group(theirs)
    if len(ours_below) != len(theirs_below):
        return False
    matched = {}
    by_stem = collections.defaultdict(list)
    for step, is_weight in ours_below:
        if step.stem is None:
            matched[step, is_weight] = (step.name, is_weight)
        else:
            by_stem[step.stem, is_weight].append(step)
    free = set(theirs_below) - set(matched.values())
    for (stem, is_weight), steps in by_stem.items():
        steps.sort(key=lambda step: _number(step.name, stem))
        candidates = [
            name for name, is_theirs in free if is_theirs == is_weight and _number(name, stem) is not None
        ]
        candidates.sort(key=lambda name: _number(name, stem))
        if len(candidates) != len(steps):
            return False
        for step, name in zip(steps, candidates):
            matched[step, is_weight] = (name, is_weight)
    for key, their_key in matched.items():
        if their_key not in theirs_below:
            return False
        if key[1]:
            pairs.append((ours_below[key][0][1], theirs_below[their_key][0][1]))
        elif not _match(ours_below[key], theirs_below[their_key], pairs):
            return False
    return True


def _group(paths):
    """{(first step, whether it is the last): [(the others, the whole)]}."""
    groups = collections.defaultdict(list)
    for (first, *others), whole in paths:
        groups[first, not others].append((others, whole))
    return groups


def _number(name, stem):
    """The number in a name made by Keras, else None: 0 for "dense", 3 for "dense_3"."""
    match = re.fullmatch(rf"{re.escape(stem)}(?:_([0-9]+))?", name)
    if match is None:
        return None
    return int(match[1] or 0)


def _weights_by_steps(model):
    paths = {}
    _walk(model, (), paths, set())
    weights = [(paths[id(variable)], variable) for variable in model.weights]
    assert len({tuple(step.name for step in path) for path, _ in weights}) == len(model.weights)
    return weights


def _walk(layer, above, paths, visited):
    """Records the path to each weight of a layer in `paths`: {id(weight): steps}."""
    visited.add(id(layer))
    weights = {id(weight) for weight in layer.weights}
    # A layer may refer to another layer that is not a part of it.
    parts = [part for part in _parts(layer) if part.weights and weights.issuperset(map(id, part.weights))]
    part_weights = {id(weight) for part in parts for weight in part.weights}
    own = [weight for weight in layer.weights if id(weight) not in part_weights]
    own_steps = _steps([(weight.name, "variable") for weight in own])
    for weight, step in zip(own, own_steps):
        paths.setdefault(id(weight), (*above, step))
    part_steps = _steps([(part.name, _snake_case(type(part).__name__)) for part in parts])
    for part, step in zip(parts, part_steps):
        if id(part) not in visited:
            _walk(part, (*above, step), paths, visited)


def _parts(layer):
    """The layers that a layer holds, each once: in a model's own order, else in the order of attributes."""
    parts = {}
    pending = [vars(layer)]
    if isinstance(layer, keras.Model):
        pending.append(layer.layers)
    seen = set()
    while pending:
        value = pending.pop()
        if isinstance(value, keras.layers.Layer):
            parts.setdefault(id(value), value)
        elif isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            values = value.values() if isinstance(value, dict) else value
            pending += reversed(list(values))
    parts.pop(id(layer), None)
    return list(parts.values())


def _steps(names_and_stems):
    """One `_Step` for each sibling, all with different names."""
    taken = {name for name, _ in names_and_stems}
    used = set()
    for name, stem in names_and_stems:
        distinct = name
        number = 0
        while distinct in used or (number and distinct in taken):
            number += 1
            distinct = f"{name}_{number}"
        used.add(distinct)
        # Keras names the two layers of a Bidirectional after the one that it was given.
        stems = (stem, f"forward_{stem}", f"backward_{stem}")
        yield _Step(distinct, next((stem for stem in stems if _number(distinct, stem) is not None), None))


def _snake_case(name):
    """The default name of a layer of this class in Keras."""
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
