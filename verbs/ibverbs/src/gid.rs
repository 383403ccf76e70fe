//! The port's GIDs, and which one connections use.

#![expect(unsafe_code, reason = "querying the table is a call into libibverbs")]

use gaudi_seam::{Errno, Error, Result};
use gaudi_verbs::{Gid, GidEntry, GidKind};
use gaudi_verbs_sys::consts::{IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2};
use gaudi_verbs_sys::types::ibv_gid_entry;

use crate::context::Opened;
use crate::errors::of_raw;

/// More GIDs than any port has.
const MOST: usize = 1024;

/// Returns the valid GIDs of the port (`ibv_query_gid_table`).
pub(crate) fn query(opened: &Opened) -> Result<Vec<GidEntry>> {
    const OPERATION: &str = "ibv_query_gid_table";
    let Some(query) = opened.library.symbols()._ibv_query_gid_table else {
        return Err(
            Error::unsupported(OPERATION, "this libibverbs is older than IBVERBS_1.11")
                .helped_by("install rdma-core 44 or newer"),
        );
    };
    let mut rows = vec![ibv_gid_entry::zeroed(); MOST];
    // SAFETY: the context is live and the rows are ours, of this number and length.
    let count = unsafe {
        query(
            opened.context(),
            rows.as_mut_ptr(),
            rows.len(),
            0,
            size_of::<ibv_gid_entry>(),
        )
    };
    // A number that is not an errno becomes one without a name.
    let count = usize::try_from(count)
        .map_err(|_| of_raw(OPERATION, i32::try_from(count.saturating_abs()).unwrap_or(0)))?;
    rows.truncate(count);
    Ok(rows
        .iter()
        .filter(|row| row.port_num == u32::from(opened.port))
        .map(|row| entry(opened, row))
        .collect())
}

fn entry(opened: &Opened, row: &ibv_gid_entry) -> GidEntry {
    let netdev = || {
        let attribute = format!("ports/{}/gid_attrs/ndevs/{}", opened.port, row.gid_index);
        let name = std::fs::read_to_string(opened.nic.sysfs.join(attribute)).ok()?;
        Some(name.trim().to_owned()).filter(|name| !name.is_empty())
    };
    GidEntry {
        index: row.gid_index,
        gid: Gid(row.gid.raw),
        kind: match row.gid_type {
            IBV_GID_TYPE_IB | IBV_GID_TYPE_ROCE_V1 => GidKind::IbRoceV1,
            IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            _ => GidKind::Unknown,
        },
        netdev: if row.ndev_ifindex == 0 { None } else { netdev() },
    }
}

/// Returns the GID that connections use: the requested one, or the best by [`rank`].
pub(crate) fn choose(opened: &Opened) -> Result<GidEntry> {
    const OPERATION: &str = "ibv_query_gid_table";
    let rows = query(opened)?;
    let found = || {
        rows.iter()
            .map(|row| format!("{}: {} {}", row.index, row.gid, row.kind.name()))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let chosen = match opened.gid_index {
        Some(index) => rows.iter().find(|row| row.index == index),
        None => rows
            .iter()
            .max_by_key(|row| (rank(row), std::cmp::Reverse(row.index))),
    };
    chosen.cloned().ok_or_else(|| {
        let wanted = opened
            .gid_index
            .map_or("an address".to_owned(), |index| format!("one at index {index}"));
        Error::from_errno(OPERATION, Errno::EADDRNOTAVAIL)
            .because("the port has no such address")
            .saw(found(), wanted)
            .helped_by("give the network interface below the NIC an IP address and set it up")
    })
}

/// Returns the preference of a GID: RoCE v2 before v1, IPv4 and global IPv6 before link-local.
fn rank(row: &GidEntry) -> u8 {
    let v6 = std::net::Ipv6Addr::from(row.gid.0);
    let v2 = u8::from(row.kind == GidKind::RoceV2) << 2;
    let link_local = v6.segments()[0] & 0xffc0 == 0xfe80;
    match (v6.to_ipv4_mapped(), v6.is_unspecified(), link_local) {
        (_, true, _) => 0,
        (Some(_), ..) => v2 | 3,
        (None, _, false) => v2 | 2,
        (None, _, true) => v2 | 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_prefers_ipv4_over_roce_v2() {
        let row = |index, gid: &str, kind| GidEntry {
            index,
            gid: Gid(gid.parse::<std::net::Ipv6Addr>().expect("an address").octets()),
            kind,
            netdev: None,
        };
        let rows = [
            row(0, "fe80::1", GidKind::IbRoceV1),
            row(1, "fe80::1", GidKind::RoceV2),
            row(2, "::ffff:10.0.0.1", GidKind::IbRoceV1),
            row(3, "::ffff:10.0.0.1", GidKind::RoceV2),
            row(4, "2001:db8::1", GidKind::RoceV2),
        ];
        let mut order: Vec<_> = rows.iter().collect();
        order.sort_by_key(|row| std::cmp::Reverse(rank(row)));
        let indices: Vec<_> = order.iter().map(|row| row.index).collect();
        assert_eq!(
            indices,
            [3, 4, 1, 2, 0],
            "v2 first, and in each IPv4, global, link-local"
        );
        assert_eq!(rank(&row(5, "::", GidKind::RoceV2)), 0, "an empty row is none");
    }
}
