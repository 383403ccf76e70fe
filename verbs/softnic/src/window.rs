//! [`Windows`]: memory windows by key. The rules are those of rxe (rxe_mw.c of Linux 7.3), which
//! follows the architecture.

use std::collections::HashMap;

use gaudi_verbs::Access;
use gaudi_verbs::provider::MwType;

/// The range that a window gives access to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct View {
    /// Key of the region.
    pub(crate) mr: u32,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) access: Access,
    /// Queue pair that bound a window of type 2, the only one that may use it.
    pub(crate) qpn: Option<u32>,
}

#[derive(Debug)]
struct Window {
    pd: u32,
    mw_type: MwType,
    rkey: u32,
    view: Option<View>,
}

/// All windows of a NIC. The upper 24 bits of a key name its window; the lowest 8 change with each
/// bind.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    slots: HashMap<u32, Window>,
}

impl Windows {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether a key names a window, bound or not.
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

    /// Returns whether a window is bound to a region.
    pub(crate) fn use_region(&self, mr: u32) -> bool {
        self.slots
            .values()
            .any(|window| window.view.is_some_and(|view| view.mr == mr))
    }

    /// Returns the range that a key gives access to through a queue pair, or `None` if it gives
    /// none.
    pub(crate) fn view(&self, rkey: u32, pd: u32, qpn: u32) -> Option<View> {
        let window = self.slots.get(&(rkey >> 8))?;
        let view = window.view?;
        let right = window.rkey == rkey && window.pd == pd && view.qpn.is_none_or(|owner| owner == qpn);
        right.then_some(view)
    }

    /// Binds a window to a view under a new key. Returns false if the window does not allow it. The
    /// caller checks what the region allows.
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
    /// With `qpn`, the window must be bound through that queue pair: a peer may invalidate only
    /// windows that it may use. Returns false if the key names no such window.
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

    /// Unbinds all windows of a queue pair.
    pub(crate) fn unbind_qp(&mut self, qpn: u32) {
        for window in self.slots.values_mut() {
            if window.view.is_some_and(|view| view.qpn == Some(qpn)) {
                window.view = None;
            }
        }
    }
}
