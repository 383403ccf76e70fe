//! [`Mw`]: a memory window.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use gaudi_seam::{CloseError, Error, Result};

use crate::context::Pd;
use crate::handle::MwHandle;
use crate::holders::{Hold, Holders};
use crate::invalid;
use crate::mr::Mr;
use crate::object::Object;
use crate::provider::MwType;
use crate::qp_core::QpCore;
use crate::wr::{MrAddr, RemoteRegion, Rkey, WindowBind};

/// A memory window: a key for a part of a region, bound and invalidated by work requests without a
/// system call.
///
/// Bound by [`SendPost::bind_mw`](crate::SendPost::bind_mw). Unbound by `local_inv`, by the peer's
/// `send_inv`, or by closing it. The region needs [`Access::MW_BIND`](crate::Access::MW_BIND) and
/// must outlive the binding: [`Mr::close`] names its windows.
pub struct Mw {
    object: Object<MwHandle, Pd>,
    mw_type: MwType,
    rkey: Rkey,
    /// Posted binds, oldest first. Only completions report which of them succeeded, so earlier ones
    /// are kept for [`take_back`](Self::take_back): as many as have distinct keys. Boxed, so that a
    /// window stays small enough to return in an error.
    #[expect(clippy::box_collection, reason = "see above")]
    binds: Box<VecDeque<Bound>>,
}

struct Bound {
    rkey: Rkey,
    addr: MrAddr,
    len: u64,
    windows: Arc<Holders>,
    /// Set for the last bind, and for the one before it, which is valid until the last one
    /// completes.
    hold: Option<Hold>,
}

/// Binds of one window that can be outstanding: half of the keys that its lowest eight bits give.
const OUTSTANDING: usize = 128;

impl Pd {
    /// Allocates a window that is not bound (`ibv_alloc_mw`).
    ///
    /// # Errors
    /// `Unsupported` if the NIC has no memory windows; the errno of `ibv_alloc_mw`.
    pub fn alloc_mw(&self, mw_type: MwType) -> Result<Mw> {
        const OPERATION: &str = "ibv_alloc_mw";
        let context = self.context();
        if context.attr().max_mw == 0 {
            return Err(Error::unsupported(OPERATION, "the NIC has no memory windows"));
        }
        let new = context.device(OPERATION)?.alloc_mw(self.handle(), mw_type)?;
        Ok(Mw {
            object: Object::new(new.handle, self.clone(), format!("Mw({})", new.rkey), ()),
            mw_type,
            rkey: new.rkey,
            binds: Box::default(),
        })
    }
}

impl Mw {
    /// Returns the provider's handle.
    pub fn handle(&self) -> MwHandle {
        self.object.handle
    }

    /// Returns its type.
    pub fn mw_type(&self) -> MwType {
        self.mw_type
    }

    /// Returns its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.object.parent
    }

    /// Returns the key of the last bind that was posted and not [taken back](Self::take_back).
    pub fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// Returns what the peer needs to access it, once a bind is posted. The key is valid from that
    /// bind's completion until the window is invalidated.
    pub fn remote(&self) -> Option<RemoteRegion> {
        self.binds.back().map(|bound| RemoteRegion {
            addr: bound.addr,
            len: bound.len,
            rkey: bound.rkey,
        })
    }

    /// Takes back a failed bind, so that the window has the key from before it again. `failed` is
    /// the key that [`BindReady::post`] returned. Without this, every later bind names a key that
    /// the NIC does not know, and fails too.
    ///
    /// Several failed binds may be taken back in any order. Returns false if `failed` is not a key
    /// of this window, or its bind is taken back already.
    pub fn take_back(&mut self, failed: Rkey) -> bool {
        // Each bind adds one to the key: a key that is 128 or more ahead is one from before the
        // failed bind.
        let since = |rkey: Rkey| usize::from(rkey.0.wrapping_sub(failed.0) as u8);
        if (failed.0 ^ self.rkey.0) >> 8 != 0 || since(self.rkey) >= OUTSTANDING {
            return false;
        }
        self.rkey = step(failed, u8::MAX);
        let binds = &mut self.binds;
        while binds.back().is_some_and(|bound| since(bound.rkey) < OUTSTANDING) {
            binds.pop_back();
        }
        self.hold_last();
        true
    }

    /// Registers the window with the regions of the last two binds only.
    fn hold_last(&mut self) {
        for (back, bound) in self.binds.iter_mut().rev().enumerate().take(3) {
            if back == 2 {
                bound.hold = None;
            } else if bound.hold.is_none() {
                bound.hold = Some(bound.windows.hold(format!("Mw({})", bound.rkey)));
            }
        }
    }

    /// Returns the key of the next bind. The owner counts in its lowest eight bits.
    pub(crate) fn next_rkey(&self) -> Rkey {
        step(self.rkey, 1)
    }

    pub(crate) fn note_bound(&mut self, mr: &Mr, rkey: Rkey, addr: MrAddr, len: u64) {
        self.rkey = rkey;
        let binds = &mut self.binds;
        if binds.len() == OUTSTANDING {
            binds.pop_front();
        }
        binds.push_back(Bound {
            rkey,
            addr,
            len,
            windows: mr.region().windows.clone(),
            hold: None,
        });
        // Some NICs do not name the windows when they refuse to deregister a region.
        self.hold_last();
    }

    /// Deallocates the window, bound or not (`ibv_dealloc_mw`), or returns it. Its key is invalid
    /// then.
    ///
    /// # Errors
    /// The errno of `ibv_dealloc_mw`; `Forked` in a fork child.
    pub fn close(mut self) -> Result<(), CloseError<Self>> {
        let destroyed = self.object.destroy();
        destroyed.map_err(|error| CloseError::new(self, error))
    }
}

/// Returns the key `by` binds later. 255 is one bind earlier.
fn step(rkey: Rkey, by: u8) -> Rkey {
    Rkey(rkey.0 & !0xff | u32::from((rkey.0 as u8).wrapping_add(by)))
}

impl fmt::Debug for Mw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mw({:?}, rkey {}", self.mw_type, self.rkey)?;
        if let Some(bound) = self.binds.back() {
            write!(f, ", {} bytes at {}", bound.len, bound.addr)?;
        }
        f.write_str(")")
    }
}

/// A bind being built.
#[derive(Debug)]
#[must_use = "nothing is posted until `post` is called"]
pub struct BindReady<'q, 'm> {
    pub(crate) core: &'q mut QpCore,
    pub(crate) request: crate::wr::SendWr<'static>,
    pub(crate) mw: &'m mut Mw,
    pub(crate) mr: &'m Mr,
    pub(crate) bind: WindowBind,
    pub(crate) wrong: Option<&'static str>,
}

impl BindReady<'_, '_> {
    /// As [`SendPost::signaled`](crate::SendPost::signaled).
    pub fn signaled(mut self, signaled: bool) -> Self {
        self.request.signaled = signaled;
        self
    }

    /// Posts the bind and returns what the peer needs. If the NIC refuses it, the bind completes
    /// with `MW_BIND_ERR`: see [`SendPost::bind_mw`](crate::SendPost::bind_mw).
    ///
    /// # Errors
    /// `WouldBlock` if the queue is full; `InvalidInput` if window or region belong to another
    /// domain, or for rights that the region cannot grant.
    pub fn post(self) -> Result<RemoteRegion> {
        const OPERATION: &str = "ibv_bind_mw";
        // Handles of another NIC name other objects on this one.
        if let Some(wrong) = self.wrong {
            return Err(invalid(OPERATION, wrong));
        }
        let WindowBind {
            rkey, addr, length, ..
        } = self.bind;
        self.bind.access.check_remote(OPERATION)?;
        self.core.post(&self.request)?;
        self.mw.note_bound(self.mr, rkey, addr, length);
        let len = length;
        Ok(RemoteRegion { addr, len, rkey })
    }
}
