"""Chat with a folder of onnxruntime-genai, such as one that `ortkit optimize FOLDER` wrote.

usage: python chat.py FOLDER [--tokens N]     (pip install onnxruntime-genai)

Each line of stdin is a prompt. The answer is printed token by token, then how fast it came. The
conversation is kept: its keys and values stay in the caches.
"""

from __future__ import annotations

import argparse
import sys
import time

import onnxruntime_genai as genai


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("--tokens", type=int, default=256, metavar="N", help="most of an answer")
    arguments = parser.parse_args()
    model = genai.Model(arguments.folder)
    tokenizer = genai.Tokenizer(model)
    generator = genai.Generator(model, genai.GeneratorParams(model))
    for line in sys.stdin:
        generator.append_tokens(tokenizer.encode(line.rstrip("\n")))
        answer(generator, tokenizer.create_stream(), arguments.tokens)


def answer(generator: genai.Generator, stream: genai.TokenizerStream, most: int) -> None:
    """Print tokens until the model ends, or `most` were printed."""
    started, count = time.perf_counter(), 0
    while count < most and not generator.is_done():
        generator.generate_next_token()
        count += 1
        print(stream.decode(generator.get_next_tokens()[0]), end="", flush=True)
    seconds = time.perf_counter() - started
    print(f"\n[{count} tokens, {count / seconds:.1f} tokens/s]")


if __name__ == "__main__":
    main()
