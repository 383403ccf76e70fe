//! Constants of `infiniband/verbs.h`.

use std::ffi::c_int;

/// Passes the constants of verbs.h to a macro, as [`for_each_struct`](crate::for_each_struct) does.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_constant {
    ($then:ident) => {
        $then! {
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
        /// The driver does not report it (EFA).
        IBV_NODE_UNSPECIFIED: c_int = 7;
        /// InfiniBand and RoCE.
        IBV_TRANSPORT_IB: c_int = 0;
        /// iWARP.
        IBV_TRANSPORT_IWARP: c_int = 1;
        /// usNIC.
        IBV_TRANSPORT_USNIC: c_int = 2;
        /// usNIC over UDP.
        IBV_TRANSPORT_USNIC_UDP: c_int = 3;
        /// The driver does not report it (EFA).
        IBV_TRANSPORT_UNSPECIFIED: c_int = 4;

        /// InfiniBand.
        IBV_GID_TYPE_IB: u32 = 0;
        /// RoCE v1.
        IBV_GID_TYPE_ROCE_V1: u32 = 1;
        /// RoCE v2.
        IBV_GID_TYPE_ROCE_V2: u32 = 2;

        /// Reliable connection.
        IBV_QPT_RC: u32 = 2;
        /// Unreliable datagram.
        IBV_QPT_UD: u32 = 4;

        /// The state.
        IBV_QP_STATE: c_int = 1;
        /// Rights of the peer.
        IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
        /// The partition key's index.
        IBV_QP_PKEY_INDEX: c_int = 1 << 4;
        /// The port.
        IBV_QP_PORT: c_int = 1 << 5;
        /// The key of datagrams.
        IBV_QP_QKEY: c_int = 1 << 6;
        /// The route to the peer.
        IBV_QP_AV: c_int = 1 << 7;
        /// Bytes per packet.
        IBV_QP_PATH_MTU: c_int = 1 << 8;
        /// Timeout of an answer.
        IBV_QP_TIMEOUT: c_int = 1 << 9;
        /// Retries after a timeout.
        IBV_QP_RETRY_CNT: c_int = 1 << 10;
        /// Retries if the receiver is not ready.
        IBV_QP_RNR_RETRY: c_int = 1 << 11;
        /// First packet sequence number of the peer.
        IBV_QP_RQ_PSN: c_int = 1 << 12;
        /// Reads that this end requests at a time.
        IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
        /// Wait of a peer before it retries if no receive is posted.
        IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
        /// First packet sequence number of this end.
        IBV_QP_SQ_PSN: c_int = 1 << 16;
        /// Reads that this end answers at a time.
        IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
        /// The peer's queue pair.
        IBV_QP_DEST_QPN: c_int = 1 << 20;

        /// Writes local bytes to the peer's region.
        IBV_WR_RDMA_WRITE: u32 = 0;
        /// The same with immediate data.
        IBV_WR_RDMA_WRITE_WITH_IMM: u32 = 1;
        /// Sends local bytes to the peer's next receive.
        IBV_WR_SEND: u32 = 2;
        /// The same with immediate data.
        IBV_WR_SEND_WITH_IMM: u32 = 3;
        /// Reads from the peer's region.
        IBV_WR_RDMA_READ: u32 = 4;
        /// Compares and swaps.
        IBV_WR_ATOMIC_CMP_AND_SWP: u32 = 5;
        /// Fetches and adds.
        IBV_WR_ATOMIC_FETCH_AND_ADD: u32 = 6;
        /// Invalidates a local key.
        IBV_WR_LOCAL_INV: u32 = 7;
        /// Binds a window of type 2.
        IBV_WR_BIND_MW: u32 = 8;
        /// Sends, and invalidates a key of the peer.
        IBV_WR_SEND_WITH_INV: u32 = 9;

        /// Starts after earlier reads and atomics have completed.
        IBV_SEND_FENCE: u32 = 1;
        /// Success also generates a completion.
        IBV_SEND_SIGNALED: u32 = 1 << 1;
        /// The peer's completion signals a waiter for solicited ones.
        IBV_SEND_SOLICITED: u32 = 1 << 2;
        /// The post copies the bytes.
        IBV_SEND_INLINE: u32 = 1 << 3;

        /// Set in the opcodes of receives.
        IBV_WC_RECV: u32 = 1 << 7;
        /// The receive begins with a route header.
        IBV_WC_GRH: u32 = 1;
        /// It has immediate data.
        IBV_WC_WITH_IMM: u32 = 1 << 1;
        /// It invalidated a key.
        IBV_WC_WITH_INV: u32 = 1 << 3;

        /// Bound by a call.
        IBV_MW_TYPE_1: u32 = 1;
        /// Bound by a work request.
        IBV_MW_TYPE_2: u32 = 2;

        /// The limit is set.
        IBV_SRQ_LIMIT: c_int = 1 << 1;

        /// `iova` is set.
        IBV_REG_MR_MASK_IOVA: u64 = 1, @ 65;
        /// `fd` is set.
        IBV_REG_MR_MASK_FD: u64 = 1 << 2, @ 65;
        /// `fd_offset` is set.
        IBV_REG_MR_MASK_FD_OFFSET: u64 = 1 << 3, @ 65;
        }
    };
}

for_each_constant!(c_constants);
