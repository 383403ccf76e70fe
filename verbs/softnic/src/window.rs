//! Memory windows: what their keys stand for. The rules are rxe's (rxe_mw.c of Linux 7.3), which are the architecture's.

use std::collections::HashMap;

use gaudi_verbs::Access;
use gaudi_verbs::provider::MwType;

/// Where a window looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct View {
    /// The region's key.
    pub(crate) mr: u32,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
    /// Of type 2: the queue pair that bound it and alone may use it.
    pub(crate) qpn: Option<u32>,
}

#[derive(Debug)]
struct Window {
    pd: u32,
    mw_type: MwType,
    rkey: u32,
    view: Option<View>,
}

/// All windows of a NIC. The upper 24 bits of a window's key name it; the lowest 8 change with each bind.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    slots: HashMap<u32, Window>,
}

impl Windows {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether a key is one of a window, alive or not.
    pub(crate) fn names(&self, rkey: u32) -> bool {
        self.slots.contains_key(&(rkey >> 8))
    }

    pub(crate) fn insert(&mut self, rkey: u32, pd: u32, mw_type: MwType) {
        let window = Window {
            pd,
            mw_type,
            rkey,
            view: None,
        };
        self.slots.insert(rkey >> 8, window);
    }

    pub(crate) fn remove(&mut self, handle: u32) -> bool {
        self.slots.remove(&handle).is_some()
    }

    /// Whether a window stands on this region.
    pub(crate) fn stand_on(&self, mr: u32) -> bool {
        self.slots
            .values()
            .any(|window| window.view.is_some_and(|view| view.mr == mr))
    }

    /// What a peer may do by this key through this queue pair; `None` where the key is dead or not for it.
    pub(crate) fn look(&self, rkey: u32, pd: u32, qpn: u32) -> Option<View> {
        let window = self.slots.get(&(rkey >> 8))?;
        let view = window.view?;
        let right = window.rkey == rkey && window.pd == pd && view.qpn.is_none_or(|owner| owner == qpn);
        right.then_some(view)
    }

    /// Gives a window a new key and view. `false` where that is not allowed; what the region must allow is checked by the caller.
    pub(crate) fn bind(&mut self, handle: u32, old: u32, rkey: u32, pd: u32, view: View) -> bool {
        let Some(window) = self.slots.get_mut(&handle) else {
            return false;
        };
        let free = match window.mw_type {
            MwType::Type1 => true,
            MwType::Type2 => window.view.is_none() && view.len > 0,
        };
        if window.rkey != old || window.pd != pd || rkey >> 8 != handle || !free {
            return false;
        }
        window.rkey = rkey;
        window.view = (view.len > 0).then_some(View {
            qpn: view.qpn.filter(|_| window.mw_type == MwType::Type2),
            ..view
        });
        true
    }

    /// Unbinds a window of type 2 of the domain `pd`. Its key stays reserved for the next bind.
    /// With
    /// `qpn`, the window must be bound through that queue pair: a peer may invalidate only what it may
    /// use. Returns false where the key names no such window.
    pub(crate) fn invalidate(&mut self, rkey: u32, pd: u32, qpn: Option<u32>) -> bool {
        let Some(window) = self.slots.get_mut(&(rkey >> 8)) else {
            return false;
        };
        let bound = window.view.is_some_and(|view| qpn.is_none() || view.qpn == qpn);
        let right = window.rkey == rkey && window.pd == pd && window.mw_type == MwType::Type2;
        if bound && right {
            window.view = None;
        }
        bound && right
    }

    /// A queue pair goes away, and its bindings with it.
    pub(crate) fn forget_qp(&mut self, qpn: u32) {
        for window in self.slots.values_mut() {
            if window.view.is_some_and(|view| view.qpn == Some(qpn)) {
                window.view = None;
            }
        }
    }
}
