"""A Transformer in PyTorch with `scaled_dot_product_attention`, on our batches.

Does not import TensorFlow: some versions of the two cannot be loaded in one process.
"""

import torch
from torch import nn

from benchmarks import sentences
from training.machine import cores


class Embedding(nn.Module):
    """Embeddings with positions and dropout; the table is also the output projection."""

    def __init__(self, config, vocab_size):
        super().__init__()
        size = config["d_model"]
        self.table = nn.Embedding(vocab_size, size)
        nn.init.normal_(self.table.weight, std=size**-0.5)
        self.dropout = nn.Dropout(config["dropout_rate"])
        self.register_buffer("positions", torch.tensor(sentences.sinusoids(1000, size)).float())
        self.scale = size**0.5

    def forward(self, ids):
        return self.dropout(self.table(ids) * self.scale + self.positions[: ids.shape[1]])

    def logits(self, hidden):
        return hidden @ self.table.weight.T


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        size, self.heads = config["d_model"], config["num_heads"]
        self.query, self.output = nn.Linear(size, size), nn.Linear(size, size)
        self.key_value = nn.Linear(size, 2 * size)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (batch, heads, length, head_dim)

    def forward(self, x, memory, mask=None, causal=False):
        query = self.split(self.query(x))
        key, value = map(self.split, self.key_value(memory).chunk(2, dim=-1))
        heads = nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal
        )
        return self.output(heads.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """An encoder layer, or with `cross` a decoder layer."""

    def __init__(self, config, cross):
        super().__init__()
        size, dff = config["d_model"], config["dff"]
        self.attention = Attention(config)
        self.cross = Attention(config) if cross else None
        self.inner, self.outer = nn.Linear(size, dff), nn.Linear(dff, size)
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2 + cross))
        self.dropout = nn.Dropout(config["dropout_rate"])

    def forward(self, x, mask, memory=None):
        y = self.norms[0](x)
        # Padding comes last, so the causal mask hides it from real positions.
        y = self.attention(y, y, causal=True) if self.cross else self.attention(y, y, mask)
        x = x + self.dropout(y)
        if self.cross:
            x = x + self.dropout(self.cross(self.norms[1](x), memory, mask))
        return x + self.dropout(self.outer(nn.functional.relu(self.inner(self.norms[-1](x)))))


class Model(nn.Module):
    """Logits only for real target tokens."""

    def __init__(self, config, vocab_size):
        super().__init__()
        self.embedding = Embedding(config, vocab_size)
        layers = range(config["num_layers"])
        self.encoder = nn.ModuleList(Layer(config, cross=False) for _ in layers)
        self.decoder = nn.ModuleList(Layer(config, cross=True) for _ in layers)
        self.norms = nn.ModuleList(nn.LayerNorm(config["d_model"]) for _ in range(2))

    def forward(self, source, target_in, real):
        mask = (source != 0)[:, None, None]  # True = may attend
        memory, x = self.embedding(source), self.embedding(target_in)
        for layer in self.encoder:
            memory = layer(memory, mask)
        memory = self.norms[0](memory)
        for layer in self.decoder:
            x = layer(x, mask, memory)
        return self.embedding.logits(self.norms[1](x[real]))


def train(job: dict) -> dict:
    """Time training on batches of similar length."""
    config = job["config"]
    torch.manual_seed(0)
    torch.set_num_threads(len(cores()))
    pairs, batches = job["pairs"], job["batches"]
    model = Model(config, job["vocab_size"])
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

    return sentences.time_training(job, step, [pairs.batch(indices) for indices in batches])
