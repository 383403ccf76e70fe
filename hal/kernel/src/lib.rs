//! KernelIo on the real habanalabs driver.
