#!/usr/bin/env bash
# onnx 1.23.0 writes by default what onnxruntime 1.31.1, the newest at that time, refuses to read.
#
# Expected: a model made with the defaults of onnx.helper runs. Its IR version and opset are newer than the runtime's.
# python -m cleanrl_lite.tools.export_onnx names versions that the runtime has.
#
# Output seen on 2026-11-27:
#     IR version 14, opset 28
#     refused: Unsupported model IR version: 14, max supported IR version: 13
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "onnx==1.23.0" "onnxruntime==1.31.1" "numpy==2.3.5"
"$folder/venv/bin/python" -W ignore - <<'PY'
import onnx
import onnxruntime
from onnx import TensorProto, helper

value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], "graph", [value], [result])
model = helper.make_model(graph)
print(f"IR version {model.ir_version}, opset {model.opset_import[0].version}")
try:
    onnxruntime.InferenceSession(model.SerializeToString())
except Exception as error:
    print("refused:", str(error).rpartition(") ")[2])
    raise SystemExit(0)
raise SystemExit("the behaviour has changed")
PY
