"""Commands that answer a question about one result: `why` and `repro`."""
