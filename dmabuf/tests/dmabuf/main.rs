//! Buffers, windows, attachments, export and passing, on stand-ins: a kernel without udmabuf has no
//! dma-buf to give.

mod buffer;
#[path = "../device_memory/mod.rs"]
mod device_memory;
mod export;
mod import;
mod memory;
mod pass;

use std::os::fd::OwnedFd;

use gaudi_dmabuf::DmaBuf;
use gaudi_sys::{Memfd, standin};

/// Bytes of "device" memory.
const MEMORY: u64 = 1 << 20;

fn memory() -> Memfd {
    Memfd::sparse(standin::MEMFD_NAME, MEMORY).unwrap()
}

fn export_fd(memory: &Memfd, offset: u64, len: u64) -> OwnedFd {
    standin::export(memory, standin::Window { offset, len }).unwrap()
}

fn buffer(memory: &Memfd, offset: u64, len: u64) -> DmaBuf {
    DmaBuf::from_fd(export_fd(memory, offset, len)).unwrap()
}

fn is_exported(memory: &Memfd) -> bool {
    let whole = standin::Window {
        offset: 0,
        len: MEMORY,
    };
    standin::is_exported(memory, whole).unwrap()
}
