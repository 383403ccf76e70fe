//! The silicon as data: identity, memory map, queues, sync manager and packets, one module an ASIC.
