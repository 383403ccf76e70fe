//! [`Exports`]: the dma-bufs of one range of device memory, used again while they live.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use gaudi_seam::{ErrorKind, KernelIo, Result};
use gaudi_sys::lock;

use crate::buffer::{DmaBuf, Inner};
use crate::export::habanalabs::DeviceRange;
use crate::part::Part;
use crate::window::Window;

/// The exports of a range of device memory: an export that covers a part is used again while it
/// lives.
///
/// An export pins a whole device page however small it is, and each is a descriptor; windows of one
/// cost nothing.
pub struct Exports {
    memory: DeviceRange,
    /// Offset in `memory`, and the export.
    live: Mutex<Vec<(u64, Weak<Inner>)>>,
}

impl Exports {
    /// Creates the set of exports of `memory`, empty at first.
    pub fn new(memory: DeviceRange) -> Self {
        Self {
            memory,
            live: Mutex::default(),
        }
    }

    /// Returns the `len` bytes from `offset`, through an export that lives or a new one of the
    /// pages that they lie in. Neither has to be a multiple of the page.
    ///
    /// # Errors
    /// - `InvalidInput`: the range is empty or leaves the memory.
    /// - The errors of [`DeviceRange::export`].
    #[track_caller]
    pub fn window(&self, io: &dyn KernelIo, offset: u64, len: u64) -> Result<Window> {
        let all = self.memory.all();
        let part = Part::window(all.len(), offset, len).map_err(|error| error.on(io.node().device))?;
        // The lock is held across the export, so that two concurrent calls for one range make one
        // export.
        let mut live = lock(&self.live);
        live.retain(|(_, weak)| weak.strong_count() > 0);
        for (start, weak) in live.iter() {
            // Freed since `retain`.
            let Some(inner) = weak.upgrade() else { continue };
            let dmabuf = DmaBuf { inner };
            let inside = offset.checked_sub(*start);
            if let Some(part) = inside.and_then(|at| Part::within(dmabuf.size(), at, len)) {
                return Ok(Window::new(dmabuf, part));
            }
        }
        let mut pages = part.around(all.len());
        let dmabuf = match self.memory.export_part(io, pages) {
            // Some drivers export whole mappings only.
            Err(error) if error.kind() == ErrorKind::Unsupported && pages != all => {
                pages = all;
                self.memory.export_part(io, pages)?
            }
            exported => exported?,
        };
        live.push((pages.offset(), Arc::downgrade(&dmabuf.inner)));
        dmabuf.window(offset - pages.offset(), len)
    }

    /// Whether an export lives in this process.
    pub fn is_live(&self) -> bool {
        lock(&self.live).iter().any(|(_, weak)| weak.strong_count() > 0)
    }

    /// Returns the exports that other handles in this process hold, one line each. If it is empty,
    /// this process does not prevent the memory from being unmapped.
    pub fn held(&self) -> Vec<String> {
        let live = lock(&self.live);
        let live = live.iter().filter_map(|(_, weak)| weak.upgrade());
        live.filter_map(|inner| {
            let dmabuf = DmaBuf { inner };
            // This handle is the one.
            let held = dmabuf.held_beyond(1)?;
            Some(format!("{dmabuf:?} (made at {}): {held}", dmabuf.place()))
        })
        .collect()
    }
}

impl fmt::Debug for Exports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exports of {:?}", self.memory)
    }
}
