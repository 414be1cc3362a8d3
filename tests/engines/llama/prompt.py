"""A prebuilt llama.cpp generates on one thread. Prints "half" half-way and waits for a line then; last a digest of all logits.

    PYTHONPATH=…/cffi python prompt.py FOLDER MODEL
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import sys

PROMPT, TOKENS = 64, 128
folder, model_file = sys.argv[1:]

# By its file, as the package imports numpy.
spec = importlib.util.spec_from_file_location("bindings", f"{folder}/_cffi_bindings.py")
assert spec is not None and spec.loader is not None
bindings = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bindings)
llama, ffi = bindings.get_lib(), bindings.ffi
# Its backends are linked in, so that nothing looks at GGML_BACKEND_PATH by itself.
ctypes.CDLL(f"{folder}/libggml.so.0").ggml_backend_load_all()
ggml = ctypes.CDLL(f"{folder}/libggml-base.so.0")
ggml.ggml_version.restype = ctypes.c_char_p

llama.llama_backend_init()
wanted = llama.llama_model_default_params()
wanted.n_gpu_layers = 99
model = llama.llama_model_load_from_file(model_file.encode(), wanted)
assert model != ffi.NULL
sizes = llama.llama_context_default_params()
sizes.n_ctx, sizes.n_batch, sizes.n_threads, sizes.n_threads_batch = 1024, 256, 1, 1
context = llama.llama_init_from_model(model, sizes)
assert context != ffi.NULL
vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))

tokens = [(7 * each * each + 3) % vocabulary for each in range(PROMPT)]
made, digest = [], hashlib.sha256()
for step in range(TOKENS):
    batch = ffi.new("llama_token[]", tokens)
    assert llama.llama_decode(context, llama.llama_batch_get_one(batch, len(tokens))) == 0
    logits = bytes(ffi.buffer(llama.llama_get_logits_ith(context, -1), 4 * vocabulary))
    digest.update(logits)
    row = memoryview(logits).cast("f")
    tokens = [max(range(vocabulary), key=row.__getitem__)]
    made += tokens
    if step == TOKENS // 2:
        print("half", flush=True)
        sys.stdin.readline()
llama.llama_free(context)
print(json.dumps({"ggml": ggml.ggml_version().decode(), "distinct": len(set(made)), "logits": digest.hexdigest()}))
