//! The seam between drivers and backends: KernelIo, addresses, errors and DeviceSpec.
