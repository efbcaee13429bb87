"""Asks a TF Serving over gRPC, which needs `pip install tensorflow-serving-api`.

```
python grpc_client.py "4th of July 2016"
python grpc_client.py --n-best "4th of July 2016" "3. Oktober 1990"
```
"""

import argparse
import os

try:
    import grpc
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
except ImportError as error:
    message = f"The gRPC client needs TF Serving's API ({error}): pip install tensorflow-serving-api"
    raise SystemExit(message) from None

import tensorflow as tf  # comes with tensorflow-serving-api


def predict(server, model, signature_name, texts, timeout):
    """The outputs of one request, as a dict from name to NumPy array."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature_name
    inputs = [os.fsencode(text) for text in texts]
    request.inputs["inputs"].CopyFrom(tf.make_tensor_proto(inputs, dtype=tf.string, shape=[len(inputs)]))
    with grpc.insecure_channel(server) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        try:
            reply = stub.Predict(request, timeout=timeout)
        except grpc.RpcError as error:
            raise SystemExit(f"{server} answered {error.code().name}: {error.details()}") from None
    return {name: tf.make_ndarray(tensor) for name, tensor in reply.outputs.items()}


def main():
    parser = argparse.ArgumentParser(
        description="Translates texts with a model served by TF Serving, over gRPC."
    )
    parser.add_argument("texts", nargs="+", metavar="TEXT")
    parser.add_argument("--server", default="localhost:8500", help="host:port (default: %(default)s)")
    parser.add_argument("--model", default="dates", help="name in models.config (default: %(default)s)")
    parser.add_argument("--n-best", action="store_true", help="print all candidates, each after its score")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds (default: %(default)s)")
    options = parser.parse_args()

    signature_name = "translate_n_best" if options.n_best else "serving_default"
    outputs = predict(options.server, options.model, signature_name, options.texts, options.timeout)
    if not options.n_best:
        for translation in outputs["outputs"]:
            print(translation.decode())
        return
    for text, candidates, scores in zip(options.texts, outputs["outputs"], outputs["scores"], strict=True):
        print(text)
        for candidate, score in zip(candidates, scores, strict=True):
            print(f"  {score:8.3f}  {candidate.decode()}")


if __name__ == "__main__":
    main()
