"""The capsule: a hardened container, by gVisor where it runs, else by namespaces and a seccomp filter."""
