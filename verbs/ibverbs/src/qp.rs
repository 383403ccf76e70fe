//! Attributes and masks of `ibv_modify_qp`.

use std::ffi::c_int;
use std::time::Duration;

use gaudi_seam::{Errno, Error, Result};
use gaudi_verbs::Gid;
use gaudi_verbs::provider::{QpState, QpTransition};
use gaudi_verbs_sys::consts::*;
use gaudi_verbs_sys::types::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr};

/// Hop limit, as in rdma-core's examples.
const HOPS: u8 = 64;

/// Returns a route to `gid` from a row of a port's table. An InfiniBand fabric uses `lid`, which is
/// 0 on Ethernet. The global route is set on both, so that it may cross subnets.
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

/// Returns what a transition sets, and the mask of it. `sgid_index` is called if a route is needed.
pub(crate) fn attributes(
    transition: &QpTransition,
    port: u8,
    sgid_index: impl FnOnce() -> Result<u8>,
) -> Result<(ibv_qp_attr, c_int)> {
    let mut attr = ibv_qp_attr::zeroed();
    let (state, mask) = match transition {
        QpTransition::Init { access } => {
            attr.port_num = port;
            attr.qp_access_flags = access.bits();
            (
                QpState::INIT,
                IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
            )
        }
        QpTransition::UdInit { qkey } => {
            attr.port_num = port;
            attr.qkey = *qkey;
            (QpState::INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)
        }
        QpTransition::ReadyToReceive {
            remote,
            path_mtu,
            max_dest_rd_atomic,
            min_rnr_timer,
        } => {
            attr.path_mtu = path_mtu.0.into();
            attr.dest_qp_num = remote.qpn.0;
            attr.rq_psn = remote.psn.0;
            attr.max_dest_rd_atomic = *max_dest_rd_atomic;
            attr.min_rnr_timer = rnr_timer(*min_rnr_timer);
            attr.ah_attr = route(port, &remote.gid, remote.lid, sgid_index()?);
            let limits = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
            let peer = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            (QpState::RTR, peer | limits)
        }
        QpTransition::UdReadyToReceive => (QpState::RTR, 0),
        QpTransition::UdReadyToSend { sq_psn } => {
            attr.sq_psn = sq_psn.0;
            (QpState::RTS, IBV_QP_SQ_PSN)
        }
        QpTransition::ReadyToSend {
            sq_psn,
            max_rd_atomic,
            timeout,
            retry_cnt,
            rnr_retry,
        } => {
            attr.sq_psn = sq_psn.0;
            attr.max_rd_atomic = *max_rd_atomic;
            attr.timeout = ack_timeout(*timeout);
            attr.retry_cnt = *retry_cnt;
            attr.rnr_retry = *rnr_retry;
            let retries = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
            (QpState::RTS, retries | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)
        }
        QpTransition::Error => (QpState::ERR, 0),
        QpTransition::Reset => (QpState::RESET, 0),
        other => {
            return Err(Error::from_errno("ibv_modify_qp", Errno::EOPNOTSUPP)
                .because(format!("this provider does not know {other:?}")));
        }
    };
    attr.qp_state = state.0;
    Ok((attr, mask | IBV_QP_STATE))
}

/// `ibv_qp_attr.timeout`: 4.096 us times two to the code. Returns the code of the shortest time
/// that is not below `wanted`, or of the longest, 2.4 hours.
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

/// Returns the code of the shortest time that is not below `wanted`, or of the longest, 655.36 ms.
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
            let datagram = route(2, &remote.gid, lid, 4);
            for (what, seen) in [("a connection's", &attr.ah_attr), ("a datagram's", &datagram)] {
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
            assert_ne!(mask & IBV_QP_AV, 0, "the mask has the route");
        }
    }

    #[test]
    fn timers_round_up_to_the_next_step() {
        let micros = Duration::from_micros;
        assert_eq!(ack_timeout(Duration::ZERO), 1, "0 has no limit");
        assert_eq!(ack_timeout(micros(67_108)), 14, "67.108 ms is just below code 14");
        assert_eq!(ack_timeout(Duration::from_secs(2)), 19, "2.147 s");
        assert_eq!(ack_timeout(Duration::MAX), 31, "the longest code");
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
