"""From files of text to batches of ids: corpora, the built-in corpus, tokenizer, batches."""
