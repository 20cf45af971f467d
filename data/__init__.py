"""Corpora, tokenizers, the cache of encoded corpora, and batches."""
