"""Compares `unfold print` with the parser and the printer of the onnx package on its backend models.

    python tests/text.py PROGRAM [MODEL...]

PROGRAM prints each model and onnx parses the text, and onnx prints it and PROGRAM parses the text. Both must give the
graph of the file. Fields that the syntax omits (doc strings and metadata of nodes and graphs, sparse tensors,
denotations) are removed before the comparison, and tensors are compared by their elements. Models whose text onnx
itself cannot read back are counted separately. Needs numpy and onnx. The exit code is 0 if all graphs are equal.
"""
import collections, pathlib, subprocess, sys, tempfile
import numpy as np, onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases


def normalized(message):
    """A copy of a message without the omitted fields, and with the elements of tensors as raw data."""
    copied = type(message)()
    copied.CopyFrom(message)
    strip(copied)
    return copied


def strip(message):
    if isinstance(message, onnx.TensorProto):
        bits = message.data_type == onnx.TensorProto.STRING
        elements = list(message.string_data) if bits else numpy_helper.to_array(message).tobytes()
        name, dims, kind = message.name, list(message.dims), message.data_type
        message.Clear()
        message.name, message.data_type = name, kind
        message.dims.extend(dims)
        if bits:
            message.string_data.extend(elements)
        else:
            message.raw_data = elements
        return
    for field, value in list(message.ListFields()):
        if field.name in ("doc_string", "metadata_props", "denotation") and not isinstance(message, onnx.ModelProto):
            message.ClearField(field.name)
        elif field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                strip(inner)
        elif value == "" and not isinstance(message, onnx.AttributeProto):
            message.ClearField(field.name)


def printed(program, path):
    done = subprocess.run([program, "print", str(path), "--elements", "all"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


def parsed(text):
    """The model that onnx parses from a text, or None."""
    try:
        return normalized(onnx.parser.parse_model(text))
    except Exception:
        return None


def judge(program, path, folder):
    """The outcome for one model: `equal`, or what differs."""
    model = normalized(onnx.load(path))
    reference = onnx.printer.to_text(model)
    survives = parsed(reference) == model
    text = printed(program, path)
    theirs = parsed(text)
    if theirs is None and not survives:
        return "onnx does not read its own text"
    if theirs != model and survives:
        return "onnx reads another graph in the text of the program"
    if survives:
        source = folder / "model.onnxtxt"
        source.write_text(reference)
        if parsed(printed(program, source)) != model:
            return "the program reads another graph in the text of onnx"
    return "equal" if theirs == model else "onnx loses a part of the model"


def backend_models(folder):
    """The models of the backend tests, both those stored as files and those that onnx generates."""
    yield from sorted((pathlib.Path(onnx.__file__).parent / "backend" / "test" / "data").rglob("model.onnx"))
    for case in collect_testcases(None):
        if case.model is not None:
            path = folder / f"{case.name}.onnx"
            onnx.save(case.model, path)
            yield path
            path.unlink()


def main():
    program, *paths = sys.argv[1:]
    found = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        for path in paths or backend_models(pathlib.Path(folder)):
            try:
                verdict = judge(program, path, pathlib.Path(folder))
            except RuntimeError as error:
                verdict = str(error).split(":")[-1]
            found[verdict] += 1
            if verdict.startswith(("onnx reads", "the program")) or ":" in verdict:
                print(path, verdict)
    for verdict, count in found.most_common():
        print(f"{count:6} {verdict}")
    accepted = {"equal", "onnx does not read its own text", "onnx loses a part of the model"}
    sys.exit(not set(found) <= accepted)


if __name__ == "__main__":
    main()
