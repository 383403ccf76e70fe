//! Objects of libibverbs in the tables, with their parents.

#![expect(
    unsafe_code,
    reason = "pointers of the library's objects are sent between threads"
)]

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use gaudi_dmabuf::Attachment;
use gaudi_seam::Result;
use gaudi_verbs_sys::types::{ibv_ah, ibv_mr, ibv_mw, ibv_pd};

use crate::errors::last;

/// A pointer to an object of libibverbs, which any thread may use.
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) NonNull<T>);

// SAFETY: libibverbs takes calls on an object from any thread (man 7 rdma-core, "thread safe"). The
// structs are only read here, except a window's key, which is written and read under a lock of the
// window ([`Mw::posting`]).
unsafe impl<T> Send for Object<T> {}
// SAFETY: as above, at the same time too.
unsafe impl<T> Sync for Object<T> {}

impl<T> Object<T> {
    /// Takes the result of a call that returns NULL and sets errno on failure.
    pub(crate) fn new(operation: &'static str, object: *mut T) -> Result<Self> {
        NonNull::new(object).map(Self).ok_or_else(|| last(operation))
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

#[derive(Debug)]
pub(crate) struct Pd(pub(crate) Object<ibv_pd>);

/// The maker of a region, which determines how it is deregistered.
#[derive(Debug)]
pub(crate) enum Origin {
    /// libibverbs.
    Library,
    /// The kernel's ioctl. libibverbs does not know the region, and this crate owns its struct.
    Kernel { driver_id: u32 },
}

#[derive(Debug)]
pub(crate) struct Mr {
    /// The library's struct, or that of this crate.
    pub(crate) object: Object<ibv_mr>,
    pub(crate) origin: Origin,
    /// Names this importer to the exporter.
    pub(crate) _attachment: Option<Attachment>,
    pub(crate) _pd: Arc<Pd>,
}

#[derive(Debug)]
pub(crate) struct Mw {
    pub(crate) object: Object<ibv_mw>,
    /// Locked from when a bind writes the key to the struct until the library has read it.
    pub(crate) posting: Mutex<()>,
    pub(crate) _pd: Arc<Pd>,
}

#[derive(Debug)]
pub(crate) struct Ah {
    pub(crate) object: Object<ibv_ah>,
    pub(crate) _pd: Arc<Pd>,
}
