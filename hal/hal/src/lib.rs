//! Opens any DeviceSpec and hands out KernelIo.
