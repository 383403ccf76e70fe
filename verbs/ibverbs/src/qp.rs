//! Attributes and masks of `ibv_modify_qp`.

use std::ffi::c_int;
use std::time::Duration;

use gaudi_seam::{Errno, Error, Result};
use gaudi_verbs::Gid;
use gaudi_verbs::provider::QpTransition;
use gaudi_verbs_sys::consts::*;
use gaudi_verbs_sys::types::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr};

/// Hop limit, as in rdma-core's examples.
const HOPS: u8 = 64;

/// A way to `gid` from a row of a port's table. `lid` is what an InfiniBand fabric goes by, and 0
/// on Ethernet, where nobody looks at it; the global route is there on both, so that a subnet's
/// border is none.
pub(crate) fn route(port: u8, gid: &Gid, lid: u16, sgid_index: u8) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: gid.0 },
            sgid_index,
            hop_limit: HOPS,
            ..ibv_global_route::zeroed()
        },
        dlid: lid,
        is_global: 1,
        port_num: port,
        ..ibv_ah_attr::zeroed()
    }
}

/// What a transition sets, and the mask that says so. `sgid_index` is asked for where a way is
/// needed.
pub(crate) fn attributes(
    transition: &QpTransition,
    port: u8,
    sgid_index: impl FnOnce() -> Result<u8>,
) -> Result<(ibv_qp_attr, c_int)> {
    let mut attr = ibv_qp_attr::zeroed();
    let mask = match transition {
        QpTransition::Init { access } => {
            attr.qp_state = IBV_QPS_INIT;
            attr.port_num = port;
            attr.qp_access_flags = access.bits();
            IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS
        }
        QpTransition::UdInit { qkey } => {
            attr.qp_state = IBV_QPS_INIT;
            attr.port_num = port;
            attr.qkey = *qkey;
            IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY
        }
        QpTransition::ReadyToReceive {
            remote,
            path_mtu,
            max_dest_rd_atomic,
            min_rnr_timer,
        } => {
            attr.qp_state = IBV_QPS_RTR;
            attr.path_mtu = path_mtu.0.into();
            attr.dest_qp_num = remote.qpn.0;
            attr.rq_psn = remote.psn.0;
            attr.max_dest_rd_atomic = *max_dest_rd_atomic;
            attr.min_rnr_timer = rnr_timer(*min_rnr_timer);
            attr.ah_attr = route(port, &remote.gid, remote.lid, sgid_index()?);
            IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER
        }
        QpTransition::UdReadyToReceive => {
            attr.qp_state = IBV_QPS_RTR;
            0
        }
        QpTransition::UdReadyToSend { sq_psn } => {
            attr.qp_state = IBV_QPS_RTS;
            attr.sq_psn = sq_psn.0;
            IBV_QP_SQ_PSN
        }
        QpTransition::ReadyToSend {
            sq_psn,
            max_rd_atomic,
            timeout,
            retry_cnt,
            rnr_retry,
        } => {
            attr.qp_state = IBV_QPS_RTS;
            attr.sq_psn = sq_psn.0;
            attr.max_rd_atomic = *max_rd_atomic;
            attr.timeout = ack_timeout(*timeout);
            attr.retry_cnt = *retry_cnt;
            attr.rnr_retry = *rnr_retry;
            IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC
        }
        QpTransition::Error => {
            attr.qp_state = IBV_QPS_ERR;
            0
        }
        QpTransition::Reset => {
            attr.qp_state = IBV_QPS_RESET;
            0
        }
        other => {
            return Err(Error::from_errno("ibv_modify_qp", Errno::EOPNOTSUPP)
                .because(format!("this provider does not know {other:?}")));
        }
    };
    Ok((attr, mask | IBV_QP_STATE))
}

/// `ibv_qp_attr.timeout`: 4.096 us times two to the code; the shortest that is no shorter. The
/// longest, 2.4 hours, where none is.
fn ack_timeout(wanted: Duration) -> u8 {
    let at_least = |code: &u8| wanted.as_nanos() <= 4096_u128 << code;
    (1..=31).find(at_least).unwrap_or(31)
}

/// `ibv_qp_attr.min_rnr_timer`: units of 10 us, by code from 1 (man 3 ibv_modify_qp); code 0 is the
/// longest.
const RNR_TIMERS: [u32; 31] = [
    1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096,
    6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// The shortest that is no shorter; the longest, 655.36 ms, where none is.
fn rnr_timer(wanted: Duration) -> u8 {
    let units = wanted.as_nanos().div_ceil(10_000);
    let place = RNR_TIMERS.iter().position(|timer| units <= u128::from(*timer));
    place.map_or(0, |place| place as u8 + 1) // at most 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaudi_verbs::{Mtu, Psn, QpAddress, Qpn};

    #[test]
    fn path_has_peer_gid_and_lid() {
        for lid in [0, 0x1234] {
            let remote = QpAddress {
                qpn: Qpn(0x77),
                psn: Psn(5),
                gid: Gid([3; 16]),
                mtu: Mtu::MTU_4096,
                rd_atom: 16,
                lid,
            };
            let transition = QpTransition::ReadyToReceive {
                remote,
                path_mtu: Mtu::MTU_1024,
                max_dest_rd_atomic: 9,
                min_rnr_timer: Duration::ZERO,
            };
            let (attr, mask) = attributes(&transition, 2, || Ok(4)).expect("all is there");
            let way = route(2, &remote.gid, lid, 4);
            for (what, seen) in [("a connection's", &attr.ah_attr), ("a datagram's", &way)] {
                assert_eq!((seen.dlid, seen.is_global, seen.port_num), (lid, 1, 2), "{what}");
                assert_eq!((seen.grh.sgid_index, seen.grh.hop_limit), (4, HOPS), "{what}");
                assert_eq!(seen.grh.dgid.raw, [3; 16], "{what}");
            }
            assert_eq!(
                (
                    attr.dest_qp_num,
                    attr.rq_psn,
                    attr.path_mtu,
                    attr.max_dest_rd_atomic
                ),
                (0x77, 5, 3, 9)
            );
            assert_ne!(mask & IBV_QP_AV, 0, "the way is said to be set");
        }
    }

    #[test]
    fn timers_round_up_to_the_next_step() {
        let micros = Duration::from_micros;
        assert_eq!(ack_timeout(Duration::ZERO), 1, "0 would be for ever");
        assert_eq!(ack_timeout(micros(67_108)), 14, "67.108 ms is just below code 14");
        assert_eq!(ack_timeout(Duration::from_secs(2)), 19, "2.147 s");
        assert_eq!(ack_timeout(Duration::MAX), 31, "none is so long");
        assert_eq!(rnr_timer(Duration::ZERO), 1, "10 us");
        assert_eq!(rnr_timer(micros(640)), 12, "0.64 ms");
        assert_eq!(rnr_timer(micros(641)), 13, "0.96 ms");
        assert_eq!(rnr_timer(Duration::from_millis(100)), 27, "122.88 ms");
        assert_eq!(rnr_timer(micros(491_520)), 31, "491.52 ms");
        assert_eq!(
            rnr_timer(Duration::from_secs(5)),
            0,
            "code 0 is 655.36 ms, the longest"
        );
    }
}
