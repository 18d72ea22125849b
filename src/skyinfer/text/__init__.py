"""From a question and a state to token ids: tokenizer, prompt template, sequence. No files, no weights."""
