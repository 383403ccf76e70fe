//! dma-bufs of every sort that a guest has, each with the same bytes from its other side.

#[path = "../../../../dmabuf/tests/device_memory/mod.rs"]
pub(crate) mod device_memory;

use std::os::fd::AsFd;

use gaudi_dmabuf::{DmaBuf, Exporter, Window};
use gaudi_lab::vfio::{self, Function};
use gaudi_sys::{Memfd, PAGE, RawMapping};
use gaudi_uapi::memory::MemFlags;

use crate::common::{heap, udmabuf};
use device_memory::DeviceMemory;

/// Of each.
pub(crate) const LEN: usize = 16 * PAGE as usize;

/// A window of a dma-buf, and the same bytes from their other side.
pub(crate) struct Memory {
    pub(crate) window: Window,
    pub(crate) view: RawMapping,
    _keep: Option<Box<dyn Send>>,
}

/// Sixteen pages of a memory file.
pub(crate) fn of_udmabuf() -> Memory {
    let memory = Memfd::sparse(c"lab", LEN as u64).expect("a memory file");
    let view = RawMapping::of_fd(&memory, 0, LEN).expect("it can be mapped");
    let buffer = udmabuf().export(&memory, 0, LEN as u64).expect("a udmabuf");
    Memory {
        window: buffer.whole().expect("a window"),
        view,
        _keep: None,
    }
}

pub(crate) fn of_heap() -> Memory {
    let buffer = heap().allocate(LEN as u64).expect("a buffer");
    let view = RawMapping::of_fd(buffer.as_fd(), 0, LEN).expect("a heap's buffer can be mapped");
    Memory {
        window: buffer.whole().expect("a window"),
        view,
        _keep: None,
    }
}

/// Sixteen pages of the mock's HBM, some way into it, through its export.
pub(crate) fn of_mock(name: &str) -> Memory {
    let spec = format!("mock:gaudi2?name={name}&dram=3GiB")
        .parse()
        .expect("a spec");
    let io = gaudi_hal::open(&spec).expect("a mock");
    let memory = DeviceMemory::new(io, 768 << 20, MemFlags::NONE).expect("device memory");
    let window = memory.window(5 * PAGE, LEN as u64).expect("an export");
    assert_eq!(window.dmabuf().exporter(), &Exporter::Udmabuf, "a real dma-buf");
    let view = RawMapping::of_fd(window.dmabuf().as_fd(), window.offset(), LEN).expect("it can be mapped");
    Memory {
        window,
        view,
        _keep: Some(Box::new(memory)),
    }
}

/// Sixteen pages in the middle of the BAR.
pub(crate) fn bar(function: &Function) -> (Window, RawMapping) {
    const AT: u64 = 1 << 20;
    let fd = function
        .export(vfio::BAR, AT, LEN as u64)
        .expect("the BAR leaves as a dma-buf");
    let view = function.map(vfio::BAR, AT, LEN).expect("vfio maps the BAR");
    let buffer = DmaBuf::from_fd(fd).expect("a dma-buf");
    (buffer.whole().expect("a window"), view)
}
