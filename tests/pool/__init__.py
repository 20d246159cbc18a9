"""The contract of the in-process pool. Needs no Django: it runs on every supported Python."""
