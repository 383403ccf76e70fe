//! [`AsyncEvent`]: asynchronous events of a NIC (`struct ibv_async_event`).

use crate::handle::{CqHandle, QpHandle, SrqHandle};
use crate::open_enum::open_enum;

/// The object of an event.
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

open_enum! {
    named
    /// `enum ibv_event_type` (infiniband/verbs.h), open.
    AsyncEventType(u32) {
        0 CQ_ERR "A completion queue overflowed.",
        1 QP_FATAL "A queue pair failed.",
        2 QP_REQ_ERR "A queue pair got a request that the protocol does not allow.",
        3 QP_ACCESS_ERR "A peer used a key that does not allow it.",
        4 COMM_EST "A message arrived before the queue pair was connected.",
        5 SQ_DRAINED "A send queue is drained.",
        6 PATH_MIG "The connection migrated to its alternate path.",
        7 PATH_MIG_ERR "The connection failed to migrate.",
        8 DEVICE_FATAL "The device failed.",
        9 PORT_ACTIVE "A port came up.",
        10 PORT_ERR "A port went down.",
        11 LID_CHANGE "A port's local identifier changed.",
        12 PKEY_CHANGE "A port's table of partition keys changed.",
        13 SM_CHANGE "The subnet manager changed.",
        14 SRQ_ERR "A shared receive queue failed.",
        15 SRQ_LIMIT_REACHED "A shared receive queue has fewer receives left than it was armed for.",
        16 QP_LAST_WQE_REACHED "A queue pair in error takes no more shared receives.",
        17 CLIENT_REREGISTER "The subnet manager requests registration.",
        18 GID_CHANGE "A port's table of addresses changed.",
        19 WQ_FATAL "A work queue failed.",
        20 DEVICE_SPEED_CHANGE "The device's speed changed.",
    }
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Type of the event.
    pub event_type: AsyncEventType,
    /// Object of the event.
    pub element: AsyncElement,
}
