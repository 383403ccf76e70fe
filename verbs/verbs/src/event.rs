//! What a NIC tells without being asked: `struct ibv_async_event`.

use std::fmt;

use crate::handle::{CqHandle, QpHandle, SrqHandle};

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncElement {
    /// A queue pair.
    Qp(QpHandle),
    /// A completion queue.
    Cq(CqHandle),
    /// A shared receive queue.
    Srq(SrqHandle),
    /// A port, by its number.
    Port(u8),
    /// The whole device.
    Device,
}

/// `enum ibv_event_type` (infiniband/verbs.h), open.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AsyncEventType(pub u32);

macro_rules! events {
    ($($value:literal $name:ident $text:literal,)*) => {
        impl AsyncEventType {
            $(#[doc = $text] pub const $name: Self = Self($value);)*

            /// rdma-core's name without its prefix; `None` for a value that this list does not know.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

events! {
    0 CQ_ERR "A completion queue overflowed.",
    1 QP_FATAL "A queue pair failed.",
    2 QP_REQ_ERR "A queue pair got a request that the protocol does not allow.",
    3 QP_ACCESS_ERR "A peer used a key that does not allow it.",
    4 COMM_EST "A message came before the queue pair was told that it is connected.",
    5 SQ_DRAINED "A send queue that was to drain has.",
    6 PATH_MIG "The connection took its other path.",
    7 PATH_MIG_ERR "The connection could not take its other path.",
    8 DEVICE_FATAL "The device failed.",
    9 PORT_ACTIVE "A port came up.",
    10 PORT_ERR "A port went down.",
    11 LID_CHANGE "A port's local identifier changed.",
    12 PKEY_CHANGE "A port's table of partition keys changed.",
    13 SM_CHANGE "The subnet has another manager.",
    14 SRQ_ERR "A shared receive queue failed.",
    15 SRQ_LIMIT_REACHED "A shared receive queue has fewer receives left than it was armed for.",
    16 QP_LAST_WQE_REACHED "A queue pair in error takes no more from its shared receive queue.",
    17 CLIENT_REREGISTER "The subnet asks everybody to register again.",
    18 GID_CHANGE "A port's table of addresses changed.",
    19 WQ_FATAL "A work queue failed.",
    20 DEVICE_SPEED_CHANGE "The device's speed changed.",
}

impl fmt::Display for AsyncEventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Unknown({:#x})", self.0),
        }
    }
}

impl fmt::Debug for AsyncEventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsyncEvent {
    /// What happened.
    pub event_type: AsyncEventType,
    /// To what.
    pub element: AsyncElement,
}
