"""PyTorch's nn.Transformer in a hand-written loop, on our batches of similar length.

Imports nothing of TensorFlow: some versions of the two cannot be loaded in one process.
"""

import sys
from collections.abc import Callable

import numpy as np

try:
    import torch
except ImportError:
    sys.exit(3)
from torch import nn

from benchmarks import sentences
from training.machine import cores


def positional_encoding(length, d_model):
    """(length, d_model)."""
    column = np.arange(d_model)
    angle = np.arange(length)[:, None] / 10000 ** (column // 2 * 2 / d_model)
    return torch.from_numpy(np.where(column % 2, np.cos(angle), np.sin(angle))).float()


class Embedding(nn.Module):
    """Embeddings with positions and dropout; the table is also the output projection."""

    def __init__(self, config, vocab_size):
        super().__init__()
        size = config["d_model"]
        self.table = nn.Embedding(vocab_size, size)
        nn.init.normal_(self.table.weight, std=size**-0.5)
        self.dropout = nn.Dropout(config["dropout_rate"])
        self.register_buffer("positions", positional_encoding(1000, size))
        self.scale = size**0.5

    def forward(self, ids):
        return self.dropout(self.table(ids) * self.scale + self.positions[: ids.shape[1]])

    def logits(self, hidden):
        return hidden @ self.table.weight.T


class Model(nn.Module):
    """Logits only for real target tokens."""

    def __init__(self, config, vocab_size):
        super().__init__()
        size = config["d_model"]
        self.embedding = Embedding(config, vocab_size)
        self.transformer = nn.Transformer(
            size,
            config["num_heads"],
            config["num_layers"],
            config["num_layers"],
            config["dff"],
            config["dropout_rate"],
            batch_first=True,
            norm_first=True,
        )
        # No other contestant drops attention weights and inner activations.
        for layer in (*self.transformer.encoder.layers, *self.transformer.decoder.layers):
            layer.dropout.p = layer.self_attn.dropout = 0.0
            if hasattr(layer, "multihead_attn"):
                layer.multihead_attn.dropout = 0.0

    def forward(self, source, target_in, real):
        length = target_in.shape[1]
        ahead = nn.Transformer.generate_square_subsequent_mask(length, dtype=torch.bool)
        padding = source == 0
        hidden = self.transformer(
            self.embedding(source),
            self.embedding(target_in),
            tgt_mask=ahead,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        # Padding comes last, so the causal mask hides it from real positions.
        return self.embedding.logits(hidden[real])


def main(model_class: Callable) -> None:
    """Train a model of this class. It takes the config and the vocabulary size, then batches."""
    job = sentences.load_job()
    config = job["config"]
    torch.manual_seed(0)
    torch.set_num_threads(len(cores()))
    pairs, batches = sentences.read(job["sentences"])
    model = model_class(config, job["vocab_size"])
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, (0.9, 0.98), 1e-9, fused=True)
    scale, warmup = 1e3 * config["d_model"] ** -0.5, config["warmup_steps"] ** -1.5
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: scale * min((step + 1) ** -0.5, (step + 1) * warmup)
    )
    bfloat16 = config["precision"] == "bfloat16"

    def step(source, target):
        source, target = torch.from_numpy(source).long(), torch.from_numpy(target).long()
        target_out = target[:, 1:]
        real = target_out != 0
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            logits = model(source, target[:, :-1], real)
        loss = nn.functional.cross_entropy(
            logits.float(), target_out[real], label_smoothing=config["label_smoothing"]
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.item()

    sentences.time_training(job, step, [pairs.batch(indices) for indices in batches])


if __name__ == "__main__":
    main(Model)
