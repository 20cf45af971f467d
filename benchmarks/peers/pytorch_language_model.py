"""A decoder-only Transformer of PyTorch's stock layers, on our blocks of text.

Does not import TensorFlow: some versions of the two cannot be loaded in one process.
"""

import torch
from torch import nn

from benchmarks import sentences
from training.machine import cores


class Model(nn.Module):
    """Pre-norm layers with a causal mask; the embedding is also the output projection."""

    def __init__(self, config, vocab_size):
        super().__init__()
        size = config["d_model"]
        self.table = nn.Embedding(vocab_size, size)
        nn.init.normal_(self.table.weight, std=size**-0.5)
        self.register_buffer("positions", torch.tensor(sentences.sinusoids(2048, size)).float())
        layer = nn.TransformerEncoderLayer(
            *(size, config["num_heads"], config["dff"], config["dropout_rate"]),
            batch_first=True,
            norm_first=True,
        )
        norm = nn.LayerNorm(size)
        self.layers = nn.TransformerEncoder(layer, config["num_layers"], norm, False)
        self.dropout, self.scale = nn.Dropout(config["dropout_rate"]), size**0.5

    def forward(self, ids):
        length = ids.shape[1]
        x = self.dropout(self.table(ids) * self.scale + self.positions[:length])
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.layers(x, mask, is_causal=True) @ self.table.weight.T


def train(job: dict) -> dict:
    """Time training on blocks of text."""
    config = job["config"]
    torch.manual_seed(0)
    torch.set_num_threads(len(cores()))
    model = Model(config, job["vocab_size"])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    bfloat16 = config["precision"] == "bfloat16"

    def step(source, target):
        target = torch.from_numpy(target).long()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            logits = model(target[:, :-1])
        loss = nn.functional.cross_entropy(
            logits.float().flatten(0, 1), target[:, 1:].flatten(), ignore_index=0
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    return sentences.time_training(job, step, [job["pairs"].batch(b) for b in job["batches"]])
