//! Constants of `infiniband/verbs.h`.

use std::ffi::c_int;

/// Passes the constants of verbs.h to a macro, as [`for_each_struct`](crate::for_each_struct) does.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_constant {
    ($then:ident) => {
        $then! {
        /// The local NIC may write.
        IBV_ACCESS_LOCAL_WRITE: u32 = 1;
        /// The peer may write.
        IBV_ACCESS_REMOTE_WRITE: u32 = 1 << 1;
        /// The peer may read.
        IBV_ACCESS_REMOTE_READ: u32 = 1 << 2;
        /// The peer may do atomics.
        IBV_ACCESS_REMOTE_ATOMIC: u32 = 1 << 3;
        /// Memory windows may stand on it.
        IBV_ACCESS_MW_BIND: u32 = 1 << 4;
        /// Addresses of a window count from 0.
        IBV_ACCESS_ZERO_BASED: u32 = 1 << 5;
        /// Pages are faulted in on demand.
        IBV_ACCESS_ON_DEMAND: u32 = 1 << 6;
        /// The memory is of huge pages.
        IBV_ACCESS_HUGETLB: u32 = 1 << 7;
        /// Writes may pass one another on the bus.
        IBV_ACCESS_RELAXED_ORDERING: u32 = 1 << 20;

        /// Not known.
        IBV_NODE_UNKNOWN: c_int = -1;
        /// A channel adapter.
        IBV_NODE_CA: c_int = 1;
        /// A switch.
        IBV_NODE_SWITCH: c_int = 2;
        /// A router.
        IBV_NODE_ROUTER: c_int = 3;
        /// An iWARP NIC.
        IBV_NODE_RNIC: c_int = 4;
        /// A Cisco usNIC.
        IBV_NODE_USNIC: c_int = 5;
        /// A Cisco usNIC over UDP.
        IBV_NODE_USNIC_UDP: c_int = 6;
        /// The driver does not say (EFA).
        IBV_NODE_UNSPECIFIED: c_int = 7;
        /// Not known.
        IBV_TRANSPORT_UNKNOWN: c_int = -1;
        /// InfiniBand and RoCE.
        IBV_TRANSPORT_IB: c_int = 0;
        /// iWARP.
        IBV_TRANSPORT_IWARP: c_int = 1;
        /// usNIC.
        IBV_TRANSPORT_USNIC: c_int = 2;
        /// usNIC over UDP.
        IBV_TRANSPORT_USNIC_UDP: c_int = 3;
        /// The driver does not say (EFA).
        IBV_TRANSPORT_UNSPECIFIED: c_int = 4;

        /// InfiniBand.
        IBV_GID_TYPE_IB: u32 = 0;
        /// RoCE v1.
        IBV_GID_TYPE_ROCE_V1: u32 = 1;
        /// RoCE v2.
        IBV_GID_TYPE_ROCE_V2: u32 = 2;

        /// Nobody says what runs below.
        IBV_LINK_LAYER_UNSPECIFIED: u8 = 0;
        /// InfiniBand.
        IBV_LINK_LAYER_INFINIBAND: u8 = 1;
        /// Ethernet.
        IBV_LINK_LAYER_ETHERNET: u8 = 2;

        /// Reliable connection.
        IBV_QPT_RC: u32 = 2;
        /// Unreliable datagram.
        IBV_QPT_UD: u32 = 4;
        /// The driver's own kind (EFA's SRD).
        IBV_QPT_DRIVER: u32 = 0xff;

        /// The state.
        IBV_QP_STATE: c_int = 1;
        /// What the peer may do.
        IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
        /// The partition key's index.
        IBV_QP_PKEY_INDEX: c_int = 1 << 4;
        /// The port.
        IBV_QP_PORT: c_int = 1 << 5;
        /// The key of datagrams.
        IBV_QP_QKEY: c_int = 1 << 6;
        /// The way to the peer.
        IBV_QP_AV: c_int = 1 << 7;
        /// Bytes a packet.
        IBV_QP_PATH_MTU: c_int = 1 << 8;
        /// How long to wait for an answer.
        IBV_QP_TIMEOUT: c_int = 1 << 9;
        /// How often to ask again.
        IBV_QP_RETRY_CNT: c_int = 1 << 10;
        /// How often to ask a receiver that is not ready.
        IBV_QP_RNR_RETRY: c_int = 1 << 11;
        /// Where the peer starts to count.
        IBV_QP_RQ_PSN: c_int = 1 << 12;
        /// Reads that we ask for at a time.
        IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
        /// How long a peer waits that we had no receive for.
        IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
        /// Where we start to count.
        IBV_QP_SQ_PSN: c_int = 1 << 16;
        /// Reads that we answer at a time.
        IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
        /// What it has.
        IBV_QP_CAP: c_int = 1 << 19;
        /// The peer's queue pair.
        IBV_QP_DEST_QPN: c_int = 1 << 20;

        /// Fresh.
        IBV_QPS_RESET: u32 = 0;
        /// Takes receives.
        IBV_QPS_INIT: u32 = 1;
        /// Receives.
        IBV_QPS_RTR: u32 = 2;
        /// Sends.
        IBV_QPS_RTS: u32 = 3;
        /// Its send queue drains.
        IBV_QPS_SQD: u32 = 4;
        /// Its send queue failed.
        IBV_QPS_SQE: u32 = 5;
        /// Failed.
        IBV_QPS_ERR: u32 = 6;

        /// Local bytes into the peer's region.
        IBV_WR_RDMA_WRITE: u32 = 0;
        /// And a number.
        IBV_WR_RDMA_WRITE_WITH_IMM: u32 = 1;
        /// Local bytes into the peer's receive.
        IBV_WR_SEND: u32 = 2;
        /// And a number.
        IBV_WR_SEND_WITH_IMM: u32 = 3;
        /// The peer's bytes.
        IBV_WR_RDMA_READ: u32 = 4;
        /// Replaces where equal.
        IBV_WR_ATOMIC_CMP_AND_SWP: u32 = 5;
        /// Adds.
        IBV_WR_ATOMIC_FETCH_AND_ADD: u32 = 6;
        /// A local key becomes invalid.
        IBV_WR_LOCAL_INV: u32 = 7;
        /// Binds a window of type 2.
        IBV_WR_BIND_MW: u32 = 8;
        /// A send, and a key of the peer becomes invalid.
        IBV_WR_SEND_WITH_INV: u32 = 9;

        /// Not before the reads before it.
        IBV_SEND_FENCE: u32 = 1;
        /// A completion on success too.
        IBV_SEND_SIGNALED: u32 = 1 << 1;
        /// Wakes who waits for solicited ones.
        IBV_SEND_SOLICITED: u32 = 1 << 2;
        /// The bytes are copied by the post.
        IBV_SEND_INLINE: u32 = 1 << 3;

        /// Done.
        IBV_WC_SUCCESS: u32 = 0;
        /// A receive; what is below are sends.
        IBV_WC_RECV: u32 = 1 << 7;
        /// There is a route header.
        IBV_WC_GRH: u32 = 1;
        /// There is a number.
        IBV_WC_WITH_IMM: u32 = 1 << 1;
        /// A key became invalid.
        IBV_WC_WITH_INV: u32 = 1 << 3;

        /// Bound by a call.
        IBV_MW_TYPE_1: u32 = 1;
        /// Bound by a work request.
        IBV_MW_TYPE_2: u32 = 2;

        /// The limit is set.
        IBV_SRQ_LIMIT: c_int = 1 << 1;

        /// A completion queue overflowed.
        IBV_EVENT_CQ_ERR: u32 = 0;
        /// A queue pair failed.
        IBV_EVENT_QP_FATAL: u32 = 1;
        /// A request that the protocol does not allow.
        IBV_EVENT_QP_REQ_ERR: u32 = 2;
        /// A key that does not allow it.
        IBV_EVENT_QP_ACCESS_ERR: u32 = 3;
        /// A message before the connection was told.
        IBV_EVENT_COMM_EST: u32 = 4;
        /// A send queue has drained.
        IBV_EVENT_SQ_DRAINED: u32 = 5;
        /// The other path is taken.
        IBV_EVENT_PATH_MIG: u32 = 6;
        /// The other path could not be taken.
        IBV_EVENT_PATH_MIG_ERR: u32 = 7;
        /// The device failed.
        IBV_EVENT_DEVICE_FATAL: u32 = 8;
        /// A port came up.
        IBV_EVENT_PORT_ACTIVE: u32 = 9;
        /// A port went down.
        IBV_EVENT_PORT_ERR: u32 = 10;
        /// A port's local identifier changed.
        IBV_EVENT_LID_CHANGE: u32 = 11;
        /// A port's partition keys changed.
        IBV_EVENT_PKEY_CHANGE: u32 = 12;
        /// Another subnet manager.
        IBV_EVENT_SM_CHANGE: u32 = 13;
        /// A shared receive queue failed.
        IBV_EVENT_SRQ_ERR: u32 = 14;
        /// A shared receive queue runs low.
        IBV_EVENT_SRQ_LIMIT_REACHED: u32 = 15;
        /// A queue pair in error takes no more receives.
        IBV_EVENT_QP_LAST_WQE_REACHED: u32 = 16;
        /// The subnet asks to register again.
        IBV_EVENT_CLIENT_REREGISTER: u32 = 17;
        /// A port's addresses changed.
        IBV_EVENT_GID_CHANGE: u32 = 18;
        /// A work queue failed.
        IBV_EVENT_WQ_FATAL: u32 = 19;
        /// A port's speed changed.
        IBV_EVENT_DEVICE_SPEED_CHANGE: u32 = 20, @ 65;

        /// `iova` is given.
        IBV_REG_MR_MASK_IOVA: u64 = 1, @ 65;
        /// `addr` is given.
        IBV_REG_MR_MASK_ADDR: u64 = 1 << 1, @ 65;
        /// `fd` is given.
        IBV_REG_MR_MASK_FD: u64 = 1 << 2, @ 65;
        /// `fd_offset` is given.
        IBV_REG_MR_MASK_FD_OFFSET: u64 = 1 << 3, @ 65;
        /// A handle for steering is given.
        IBV_REG_MR_MASK_DMAH: u64 = 1 << 4, @ 65;
        }
    };
}

for_each_constant!(c_constants);
