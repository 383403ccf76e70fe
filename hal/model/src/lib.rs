//! The virtual chip: memory, MMU, command processors, DMA engines and sync manager.
