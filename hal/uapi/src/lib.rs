//! The kernel ABI as data: structs, op codes, open enums and the three ioctl eras of habanalabs.
