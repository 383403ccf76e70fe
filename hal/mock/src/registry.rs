//! The mocks of this process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use gaudi_model::MemoryKind;
use gaudi_seam::{Era, Error, ErrorKind, KernelIo, MockSpec, Node, NodeKind, Result};
use gaudi_sys::Memfd;

use crate::node::MockNode;
use crate::open::{Device, Ledger};

/// All devices of this process. A device that is not in use is dropped with its memory; one that
/// exports hold open is kept.
static DEVICES: Mutex<BTreeMap<(String, u32), Entry>> = Mutex::new(BTreeMap::new());

enum Entry {
    /// A node of it is open.
    Used(Weak<Device>),
    /// Closed, but an export holds the context: the driver keeps the file open (memory.c
    /// `hl_export_dmabuf_common`).
    Held(Arc<Device>),
}

impl Device {
    /// The user's last descriptor is closed.
    pub(crate) fn close_compute(self: &Arc<Self>) {
        if self.release_user() {
            let key = (self.spec.name.clone(), self.spec.index);
            devices().insert(key, Entry::Held(Arc::clone(self)));
        }
    }
}

fn devices() -> MutexGuard<'static, BTreeMap<(String, u32), Entry>> {
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device of a spec: the one of this process, or a new one.
fn device(spec: &MockSpec) -> Result<Arc<Device>> {
    let mut devices = devices();
    let key = (spec.name.clone(), spec.index);
    // A device that only exports held open can be opened again once they are closed, and is dropped
    // with its last node.
    for entry in devices.values_mut() {
        if let Entry::Held(device) = entry {
            let mut state = device.lock();
            state.settle();
            if state.context.is_none() {
                let device = Arc::downgrade(device);
                drop(state);
                *entry = Entry::Used(device);
            }
        }
    }
    devices.retain(|_, entry| match entry {
        Entry::Used(device) => device.strong_count() > 0,
        Entry::Held(_) => true,
    });
    let existing = match devices.get(&key) {
        Some(Entry::Used(device)) => device.upgrade(),
        Some(Entry::Held(device)) => Some(Arc::clone(device)),
        None => None,
    };
    if let Some(device) = existing {
        if (device.spec.chip, device.spec.dram, device.spec.order) != (spec.chip, spec.dram, spec.order) {
            return Err(Error::new(ErrorKind::InvalidInput, "open")
                .on(device.id)
                .because("this process has a mock of that name and index with other memory or order")
                .saw(spec, &device.spec)
                .helped_by("give one of them another name or index"));
        }
        return Ok(device);
    }
    let device = Arc::new(Device::new(spec, MemoryKind::Shared)?);
    devices.insert(key, Entry::Used(Arc::downgrade(&device)));
    Ok(device)
}

pub(crate) fn node(device: &Arc<Device>, kind: NodeKind) -> Arc<MockNode> {
    let node = Node {
        kind,
        device: device.id,
        era: Era::AccelDrm,
        name: device.name.clone(),
    };
    Arc::new(MockNode::new(Arc::clone(device), node))
}

/// Opens the compute node.
///
/// # Errors
/// - `Busy` (`EBUSY`) if it is open, or exports of its last user hold it.
/// - `InReset` (`EAGAIN`) while the device is reset.
/// - `InvalidInput` if this process has a mock of that name and index with another chip, memory or
///   order.
/// - `OutOfMemory` if the host cannot provide the chip's memory.
/// - `TooManyFiles` if the process has no descriptor left for a file of that memory.
pub fn open(spec: &MockSpec) -> Result<Arc<dyn KernelIo>> {
    let device = device(spec)?;
    device.open_compute()?;
    Ok(node(&device, NodeKind::Compute))
}

/// Opens the compute node for a program that maps the buffers itself, by mmap(2) of the returned
/// file.
///
/// A command buffer, a timestamps buffer or a block lies in the file at the offset that is its
/// handle: a whole number of pages, not 0, below 2^63. The handle of a block that cannot be mapped
/// is an offset at which mmap(2) fails with `EOVERFLOW`. No object lies in the file's first page.
///
/// A destroyed command buffer keeps its memory while this process maps it. The mock finds that out
/// from `/proc/self/maps`, which it reads once for every 32 MiB of destroyed buffers.
///
/// # Errors
/// As for [`open`].
pub fn open_for_program(spec: &MockSpec) -> Result<(Arc<dyn KernelIo>, Arc<Memfd>)> {
    let device = device(spec)?;
    let file = device.open_compute_for_program()?;
    Ok((node(&device, NodeKind::Compute), file))
}

/// Opens the control node, which answers information only. Any number of users can have it open.
///
/// # Errors
/// `InvalidInput`, `OutOfMemory` and `TooManyFiles` as for [`open`].
pub fn control(spec: &MockSpec) -> Result<Arc<dyn KernelIo>> {
    Ok(node(&device(spec)?, NodeKind::Control))
}

/// Returns the mocks of this process that are in use, by name and index.
pub fn list() -> Vec<MockSpec> {
    let devices = devices();
    let mut specs: Vec<_> = devices
        .values()
        .filter_map(|entry| match entry {
            Entry::Used(device) => device.upgrade().map(|device| device.spec.clone()),
            Entry::Held(device) => Some(device.spec.clone()),
        })
        .collect();
    specs.sort_by(|a, b| (&a.name, a.index).cmp(&(&b.name, b.index)));
    specs
}

/// Returns what the user of a mock has not released; `None` if this process has no such mock.
pub fn ledger(spec: &MockSpec) -> Option<Ledger> {
    let device = match devices().get(&(spec.name.clone(), spec.index))? {
        Entry::Used(device) => device.upgrade()?,
        Entry::Held(device) => Arc::clone(device),
    };
    Some(device.ledger())
}
