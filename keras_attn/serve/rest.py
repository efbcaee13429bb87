"""The bodies of TF Serving's REST API: a request to a `Call`, the outputs to an answer.

References: https://www.tensorflow.org/tfx/serving/api_rest, tensorflow_serving/util/json_tensor.cc,
servables/tensorflow/classifier.cc and regressor.cc.
"""

import dataclasses
import math

from keras_attn.serve.errors import FAILED_PRECONDITION, UNIMPLEMENTED, RequestError
from keras_attn.serve.json_text import parse, pretty
from keras_attn.serve.tensors import STRING, Tensor, is_base64, to_json, to_tensor

DEFAULT_SIGNATURE = "serving_default"


@dataclasses.dataclass(frozen=True)
class Call:
    """What a request asks: a signature's name, its inputs as a dict of `Tensor`s, and whether it gave them in rows."""

    signature_name: str
    inputs: dict
    is_in_rows: bool


def read_predict(body, find_signature):
    """Reads the body of a `:predict`.

    Args:
        body: bytes.
        find_signature: Function from a signature's name to its `SignatureDef`; it raises `RequestError` where there is
            none.

    Returns:
        A `Call`.

    Raises:
        RequestError: if TF Serving would refuse the request.
    """
    document = parse(body)
    name = _signature_name(document)
    infos = find_signature(name).inputs
    if not infos:
        raise RequestError(f"Failed to get input map for signature: {name}")
    if "instances" in document and "inputs" in document:
        raise _wrong_form(
            document, "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist "
        )
    if "instances" in document:
        return Call(name, _from_rows(document, infos), is_in_rows=True)
    if "inputs" in document:
        return Call(name, _from_columns(document["inputs"], infos), is_in_rows=False)
    raise RequestError("Missing 'inputs' or 'instances' key")


def _signature_name(document):
    name = document.get("signature_name", DEFAULT_SIGNATURE)
    if not isinstance(name, str):
        raise _wrong_form(document, "not formatted correctly. 'signature_name' key must be a string value.")
    return name or DEFAULT_SIGNATURE


def _wrong_form(document, message):
    return RequestError(f"JSON Value: {pretty(document)} {message}")


def _from_rows(document, infos):
    rows = document["instances"]
    if not isinstance(rows, list):
        raise _wrong_form(document, "Excepting 'instances' to be an list/array")
    if not rows:
        raise _wrong_form(document, "No values in 'instances' array")
    if not isinstance(rows[0], dict) and len(infos) > 1:
        raise RequestError(
            "instances is a plain list, but expecting list of objects as multiple input tensors required as per "
            "tensorinfo_map"
        )
    if _is_object(rows[0]):
        return _from_objects(rows, infos)
    name, info = next(iter(infos.items()))
    tensors = []
    for number, row in enumerate(rows):
        if _is_object(row):
            raise RequestError(f"Expecting value/list but got object at item {number} of input list")
        try:
            tensors.append(_like_first(to_tensor(row, info.dtype), tensors))
        except RequestError as error:
            raise _failed_element(number, "", error) from None
    return {name: _stacked(tensors)}


def _from_objects(rows, infos):
    columns = {}
    for number, row in enumerate(rows):
        if not _is_object(row):
            raise RequestError(f"Expecting object but got list at item {number} of input list")
        for name, value in row.items():
            try:
                if name not in infos:
                    raise RequestError(f"JSON object: does not have named input: {name}")
                tensors = columns.setdefault(name, [])
                tensors.append(_like_first(to_tensor(value, infos[name].dtype), tensors))
            except RequestError as error:
                raise _failed_element(number, f" key: {name}", error) from None
        if len(row) != len(infos):
            raise RequestError(
                f"Failed to process element: {number} of 'instances' list. JSON object: {pretty(row)} must only have "
                f"keys: {','.join(sorted(infos))}"
            )
    return {name: _stacked(tensors) for name, tensors in columns.items()}


def _is_object(value):
    return isinstance(value, dict) and not is_base64(value)


def _failed_element(number, key, error):
    code = "INVALID_ARGUMENT"
    if error.http_status == 501:
        code = "UNIMPLEMENTED"
    return RequestError(
        f"Failed to process element: {number}{key} of 'instances' list. Error: {code}: {error.message}"
    )


def _like_first(tensor, tensors):
    """The tensor of a row, which must have the shape of those before it."""
    if not tensors:
        return tensor
    shape = tensors[0].shape
    size = math.prod(tensor.shape)
    expected = math.prod(shape)
    if size != expected:
        raise RequestError(f"Expecting tensor size: {expected} but got: {size}")
    if tensor.shape != shape:
        raise RequestError(f"Expecting shape {_shown(shape)} but got: {_shown(tensor.shape)}")
    return tensor


def _shown(shape):
    return f"[{','.join(map(str, shape))}]"


def _stacked(tensors):
    return Tensor([tensor.values for tensor in tensors], (len(tensors), *tensors[0].shape))


def _from_columns(value, infos):
    if _is_object(value):
        for name in infos:
            if name not in value:
                raise RequestError(f"Missing named input: {name} in 'inputs' object.")
        return {name: to_tensor(value[name], info.dtype) for name, info in infos.items()}
    if len(infos) > 1:
        raise RequestError(
            "inputs is a plain value/list, but expecting an object as multiple input tensors required as per "
            "tensorinfo_map"
        )
    return {name: to_tensor(value, info.dtype) for name, info in infos.items()}


def answer(call, outputs, infos):
    """The answer to a `Call` as a value of JSON.

    Args:
        call: `Call`.
        outputs: Dict from the names of the outputs to nested lists.
        infos: The `TensorInfo`s of the outputs by name.

    Raises:
        RequestError: if the outputs are not one for each row, where the request came in rows.
    """
    columns = {name: to_json(name, outputs[name], infos[name].dtype) for name in sorted(outputs)}
    first = next(iter(columns.values()))
    if not call.is_in_rows:
        return {"outputs": first if len(columns) == 1 else columns}
    num_rows = None
    for name, column in columns.items():
        if not isinstance(column, list):
            raise RequestError(f"Tensor name: {name} has no shape information ")
        if not column:
            raise RequestError(f"Tensor name: {name} has invalid batch size: 0")
        if num_rows not in (None, len(column)):
            raise RequestError(
                f"Tensor name: {name} has inconsistent batch size: {len(column)} expecting: {num_rows}"
            )
        num_rows = len(column)
    if len(columns) == 1:
        return {"predictions": first}
    return {"predictions": [dict(zip(columns, row)) for row in zip(*columns.values())]}


def refuse_examples(body, find_signature, method):
    """Raises what TF Serving answers to a `:classify` or `:regress` of a model without such a signature.

    The server checks names and dtypes only where it is not started with `--enable_signature_method_name_check`, so a
    signature for `:predict` is refused for what it lacks.
    """
    document = parse(body)
    name = _signature_name(document)
    examples = document.get("examples")
    if "examples" not in document:
        raise _wrong_form(document, "When method is classify, key 'examples' is expected and was not found")
    if not isinstance(examples, list):
        raise _wrong_form(document, "Expecting 'examples' value to be an list/array")
    if not examples:
        raise _wrong_form(document, "'examples' value is an empty array")
    try:
        signature = find_signature(name)
    except RequestError as error:
        if error.http_status == 404:
            raise
        raise RequestError(f"No signature was found with the name: {name}") from None
    if len(signature.inputs) != 1:
        raise RequestError("Expected one input Tensor.")
    if method == "classify":
        _refuse_classify(signature)
    else:
        _refuse_regress(signature)
    raise RequestError(f"keras-attn serve answers :predict, not :{method}.", UNIMPLEMENTED)


def _refuse_classify(signature):
    if len(signature.outputs) not in (1, 2):
        raise RequestError(f"Expected one or two output Tensors, found {len(signature.outputs)}")
    if "inputs" not in signature.inputs:
        raise RequestError(f"No classification inputs found in SignatureDef: {signature}")
    if not {"classes", "scores"} & set(signature.outputs):
        raise RequestError(
            'Expected classification signature outputs to contain at least one of "classes" or "scores". '
            f"Signature was: {signature}"
        )


def _refuse_regress(signature):
    if len(signature.outputs) != 1:
        raise RequestError("Expected one output Tensor.")
    for kind in ("inputs", "outputs"):
        if kind not in getattr(signature, kind):
            raise RequestError(
                f"No regression {kind} found in SignatureDef: {signature}", FAILED_PRECONDITION
            )
    if signature.outputs["outputs"].dtype == STRING:
        raise RequestError("Expected output Tensor of DT_FLOAT.  Got: DT_STRING")
