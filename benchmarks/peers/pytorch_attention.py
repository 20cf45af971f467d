"""A Transformer with PyTorch's scaled_dot_product_attention, on our batches of similar length."""

import sys

try:
    import torch  # noqa: F401
except ImportError:
    sys.exit(3)
from torch import nn
from torch.nn.functional import relu, scaled_dot_product_attention

from benchmarks.peers.pytorch import Embedding, main


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        size, self.heads = config["d_model"], config["num_heads"]
        self.query, self.output = nn.Linear(size, size), nn.Linear(size, size)
        self.key_value = nn.Linear(size, 2 * size)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (batch, heads, length, depth)

    def forward(self, x, memory, mask=None, causal=False):
        query = self.split(self.query(x))
        key, value = map(self.split, self.key_value(memory).chunk(2, dim=-1))
        heads = scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
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
        return x + self.dropout(self.outer(relu(self.inner(self.norms[-1](x)))))


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


if __name__ == "__main__":
    main(Model)
