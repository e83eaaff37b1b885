"""Facts and powers of this machine."""
