"""One program that tries the engine on a GPU: what must be equal, what must be lossless, and what an 8B round costs."""
