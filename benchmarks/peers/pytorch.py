"""PyTorch's nn.Transformer in a hand-written loop, on our batches of similar length."""

import os
import sys

try:
    import torch
except ImportError:
    sys.exit(3)
from torch import nn

from benchmarks import sentences
from benchmarks.peers.keras_loop import positional_encoding


class Model(nn.Module):
    """Tied embeddings; logits only for real target tokens."""

    def __init__(self, config, vocab_size):
        super().__init__()
        size = config["d_model"]
        self.embedding = nn.Embedding(vocab_size, size)
        nn.init.normal_(self.embedding.weight, std=size**-0.5)
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
        self.dropout = nn.Dropout(config["dropout_rate"])
        self.register_buffer("positions", torch.from_numpy(positional_encoding(1000, size)))
        self.scale = size**0.5

    def embed(self, ids):
        return self.dropout(self.embedding(ids) * self.scale + self.positions[:, : ids.shape[1]])

    def forward(self, source, target_in, real):
        length = target_in.shape[1]
        ahead = nn.Transformer.generate_square_subsequent_mask(length, dtype=torch.bool)
        padding = source == 0
        hidden = self.transformer(
            self.embed(source),
            self.embed(target_in),
            tgt_mask=ahead,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        # Padding comes last, so the causal mask hides it from real positions.
        return hidden[real] @ self.embedding.weight.T


def main():
    job = sentences.load_job()
    config = job["config"]
    torch.manual_seed(0)
    torch.set_num_threads(os.cpu_count())
    pairs, batches = sentences.read(job["sentences"])
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

    sentences.time_training(job, step, [pairs.batch(indices) for indices in batches])


if __name__ == "__main__":
    main()
