//! [`Mw`]: a part of a region with a key of its own.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use gaudi_seam::{Error, Result};

use crate::access::Access;
use crate::context::Pd;
use crate::handle::MwHandle;
use crate::holders::{Hold, Holders};
use crate::invalid;
use crate::mr::Mr;
use crate::provider::{MwType, NewMw};
use crate::qp_core::QpCore;
use crate::wr::{MrAddr, RemoteRegion, Rkey};

/// A memory window: rights to a part of a region that can be given and taken by a work request, without a system call.
///
/// Bound by [`SendPost::bind_mw`](crate::SendPost::bind_mw); unbound by `local_inv`, by the peer's `send_inv`, or by closing it. The
/// region below needs [`Access::MW_BIND`] and must outlive the binding: [`Mr::close`] names the windows that it has.
pub struct Mw {
    new: NewMw,
    mw_type: MwType,
    rkey: Rkey,
    live: bool,
    /// Boxed, so that a window stays small enough to hand back in an error.
    binds: Box<Binds>,
    _hold: Hold,
    pd: Pd,
}

/// Posted binds, oldest first. Only their completions report which succeeded, so earlier ones are kept for [`Mw::take_back`]: as many
/// as have distinct keys.
#[derive(Default)]
struct Binds(VecDeque<Bound>);

struct Bound {
    rkey: Rkey,
    addr: MrAddr,
    len: u64,
    windows: Arc<Holders>,
    /// Set for the last bind, and for the one before it, which is valid until the last one completes.
    hold: Option<Hold>,
}

impl Binds {
    /// Registers the window with the regions of the last two binds only.
    fn hold_last(&mut self) {
        for (back, bound) in self.0.iter_mut().rev().enumerate().take(3) {
            if back == 2 {
                bound.hold = None;
            } else if bound.hold.is_none() {
                bound.hold = Some(bound.windows.hold(format!("Mw({})", bound.rkey)));
            }
        }
    }
}

/// Binds of one window that can be outstanding: half of the keys that its lowest eight bits give.
const OUTSTANDING: usize = 128;

impl Pd {
    /// `ibv_alloc_mw`: a window that is bound to nothing.
    pub fn alloc_mw(&self, mw_type: MwType) -> Result<Mw> {
        const OPERATION: &str = "ibv_alloc_mw";
        let context = self.context();
        if context.attr().max_mw == 0 {
            return Err(Error::unsupported(OPERATION, "the NIC has no memory windows"));
        }
        let new = context.device(OPERATION)?.alloc_mw(self.handle(), mw_type)?;
        Ok(Mw {
            new,
            mw_type,
            rkey: new.rkey,
            live: true,
            binds: Box::default(),
            _hold: self.hold(format!("Mw({})", new.rkey)),
            pd: self.clone(),
        })
    }
}

impl Mw {
    /// As the provider names it.
    pub fn handle(&self) -> MwHandle {
        self.new.handle
    }

    /// Its type.
    pub fn mw_type(&self) -> MwType {
        self.mw_type
    }

    /// Its domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Its key: that of the last bind that was posted and not [taken back](Self::take_back).
    pub fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// What the peer needs in order to reach it, once a bind was posted. The key works from that bind's completion on, until the window
    /// is invalidated.
    pub fn remote(&self) -> Option<RemoteRegion> {
        self.binds.0.back().map(|bound| RemoteRegion {
            addr: bound.addr,
            len: bound.len,
            rkey: bound.rkey,
        })
    }

    /// A bind failed: it completed with anything but success, be it `MW_BIND_ERR` or `WR_FLUSH_ERR`, and `failed` is the key that it
    /// was to give ([`BindReady::post`]). The window has the key again that it had before that bind, which the NIC never left; without
    /// this every later bind names a key that the NIC does not know, and fails too.
    ///
    /// Of several binds that failed together each may be taken back, in any order. False where nothing was to do: `failed` is none of
    /// this window's, or of a bind that is taken back already.
    pub fn take_back(&mut self, failed: Rkey) -> bool {
        // Each bind adds one to the key: a key that is 128 or more ahead is one from before the failed bind.
        let since = |rkey: Rkey| usize::from(rkey.0.wrapping_sub(failed.0) as u8);
        if (failed.0 ^ self.rkey.0) >> 8 != 0 || since(self.rkey) >= OUTSTANDING {
            return false;
        }
        self.rkey = step(failed, u8::MAX);
        let binds = &mut self.binds.0;
        while binds.back().is_some_and(|bound| since(bound.rkey) < OUTSTANDING) {
            binds.pop_back();
        }
        self.binds.hold_last();
        true
    }

    /// The key that the next bind gives: the lowest eight bits are the owner's, and count.
    pub(crate) fn next_rkey(&self) -> Rkey {
        step(self.rkey, 1)
    }

    pub(crate) fn note_bound(&mut self, mr: &Mr, rkey: Rkey, addr: MrAddr, len: u64) {
        self.rkey = rkey;
        let binds = &mut self.binds.0;
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
        self.binds.hold_last();
    }

    /// `ibv_dealloc_mw`, bound or not; its key is dead then.
    pub fn close(mut self) -> Result<(), (Self, Error)> {
        match self.dealloc() {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }

    fn dealloc(&mut self) -> Result<()> {
        let device = self.pd.context().device("ibv_dealloc_mw")?;
        device.dealloc_mw(self.new.handle)?;
        self.live = false;
        Ok(())
    }
}

/// So many keys further on; 255 is one back.
fn step(rkey: Rkey, by: u8) -> Rkey {
    Rkey(rkey.0 & !0xff | u32::from((rkey.0 as u8).wrapping_add(by)))
}

impl Drop for Mw {
    fn drop(&mut self) {
        if self.live {
            let freed = self.dealloc();
            self.pd.context().report(freed);
        }
    }
}

impl fmt::Debug for Mw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mw({:?}, rkey {}", self.mw_type, self.rkey)?;
        if let Some(bound) = self.binds.0.back() {
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
    pub(crate) access: Access,
    pub(crate) wrong: Option<&'static str>,
}

impl BindReady<'_, '_> {
    /// As [`SendPost::signaled`](crate::SendPost::signaled).
    pub fn signaled(mut self, signaled: bool) -> Self {
        self.request.signaled = signaled;
        self
    }

    /// Posts the bind and says what the peer will need. `InvalidInput` where the window or the region belongs to another domain or the
    /// rights are not to be had; what the NIC minds tells the completion (`MW_BIND_ERR`): see
    /// [`Mw::take_back`] then.
    pub fn post(self) -> Result<RemoteRegion> {
        const OPERATION: &str = "ibv_bind_mw";
        // A provider names both by numbers of its own, which say something else on another NIC.
        if let Some(wrong) = self.wrong {
            return Err(invalid(OPERATION, wrong));
        }
        self.access.check_remote(OPERATION)?;
        let crate::wr::SendOp::BindMw {
            rkey, addr, length, ..
        } = self.request.op
        else {
            unreachable!("`bind_mw` makes no other request")
        };
        self.core.post(&self.request)?;
        self.mw.note_bound(self.mr, rkey, addr, length);
        Ok(RemoteRegion {
            addr,
            len: length,
            rkey,
        })
    }
}
