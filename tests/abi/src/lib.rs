//! Compares gaudi-uapi with the kernel C headers by a compiled check.
