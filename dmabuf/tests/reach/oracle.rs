//! Random trees, against the kernel's function written down as it stands: pointers to parents and
//! two loops.

use std::collections::BTreeMap;

use gaudi_dmabuf::reach::{Manifest, Reach, Topology, Via};
use gaudi_seam::PciAddress;
use proptest::prelude::*;

/// A function of a random machine.
#[derive(Debug, Clone)]
struct Spot {
    /// Index of the bridge above; nothing on a root bus.
    above: Option<usize>,
    host: usize,
    redirects: bool,
    listed: bool,
}

/// `calc_map_type_and_dist` (drivers/pci/p2pdma.c): whether it is supported, whether it stays on
/// the bus, and the distance.
fn kernel(spots: &[Spot], zen: bool, provider: usize, client: usize) -> (bool, bool, u32) {
    let first_of = |host| {
        spots
            .iter()
            .find(|spot| spot.host == host && spot.above.is_none())
    };
    let listed = |host| first_of(host).is_some_and(|spot: &Spot| spot.listed);
    let host_ok = zen || (listed(spots[provider].host) && listed(spots[client].host));
    let (mut a, mut dist_a) = (Some(provider), 0);
    let mut dist_b = 0;
    let mut acs = 0;
    while let Some(at) = a {
        dist_b = 0;
        acs += u32::from(spots[at].redirects);
        let mut bb = Some(client);
        while let Some(other) = bb {
            if other == at {
                let mut bb = client;
                while bb != at {
                    acs += u32::from(spots[bb].redirects);
                    bb = spots[bb].above.unwrap();
                }
                return (acs == 0 || host_ok, acs == 0, dist_a + dist_b);
            }
            bb = spots[other].above;
            dist_b += 1;
        }
        a = spots[at].above;
        dist_a += 1;
    }
    (host_ok, false, dist_a + dist_b)
}

/// Each function after its bridge; the first of each host bridge is at 00.0 and decides whether
/// that is in the table.
fn machine() -> impl Strategy<Value = Vec<Spot>> {
    let spot = (
        any::<prop::sample::Index>(),
        any::<bool>(),
        any::<bool>(),
        0_u8..4,
    );
    prop::collection::vec(spot, 1..16).prop_map(|draws| {
        let mut spots: Vec<Spot> = (0..2)
            .map(|host| Spot {
                above: None,
                host,
                redirects: false,
                listed: draws.len() % (host + 2) == 0,
            })
            .collect();
        for (above, redirects, listed, root) in draws {
            let above = (root != 0).then(|| above.index(spots.len()));
            let host = above.map_or(usize::from(listed), |above| spots[above].host);
            spots.push(Spot {
                above,
                host,
                redirects,
                listed,
            });
        }
        spots
    })
}

fn tree(spots: &[Spot], zen: bool) -> (Manifest, Vec<PciAddress>) {
    let mut tree = Manifest::default();
    let family = if zen { "0019" } else { "0015" };
    let alias = format!("cpu:type:x86,ven0002fam{family}mod0001:feature:\n");
    tree.put_text("/sys/devices/system/cpu/modalias", &alias).unwrap();
    let mut counts: BTreeMap<(usize, Option<usize>), u8> = BTreeMap::new();
    let (mut paths, mut addresses): (Vec<String>, Vec<PciAddress>) = (Vec::new(), Vec::new());
    for (index, spot) in spots.iter().enumerate() {
        let device = counts.entry((spot.host, spot.above)).or_default();
        // Bus numbers only have to differ: one a bridge.
        let bus = spot.above.map_or(spot.host as u8 * 0x80, |above| {
            above as u8 + 1 + spot.host as u8 * 0x80
        });
        let address: PciAddress = format!("0000:{bus:02x}:{:02x}.0", *device).parse().unwrap();
        *device += 1;
        let above = spot.above.map_or_else(
            || format!("/sys/devices/pci0000:{:02x}", spot.host * 0x80),
            |above| paths[above].clone(),
        );
        let path = format!("{above}/{address}");
        let target = format!("../../..{}", &path[4..]);
        tree.put_link(&format!("/sys/bus/pci/devices/{address}"), &target)
            .unwrap();
        let first = address.device == 0 && spot.above.is_none();
        tree.put_text(&format!("{path}/vendor"), "0x8086\n").unwrap();
        let device = if first && spot.listed {
            "0x09a2\n"
        } else {
            "0x1234\n"
        };
        tree.put_text(&format!("{path}/device"), device).unwrap();
        tree.put_text(&format!("{path}/class"), "0x060400\n").unwrap();
        let mut config = vec![0; 4096];
        config[0x100..0x104].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
        config[0x106] = if spot.redirects {
            [0x04, 0x08, 0x20, 0x1d][index % 4]
        } else {
            0x11
        };
        tree.put_bytes(&format!("{path}/config"), 4096, config).unwrap();
        paths.push(path);
        addresses.push(address);
    }
    (tree, addresses)
}

proptest! {
    #![proptest_config(gaudi_random::config(256))]

    #[test]
    fn every_pair_matches_the_kernels_rule(spots in machine(), zen: bool) {
        let (tree, addresses) = tree(&spots, zen);
        let topology = Topology::read(&tree);
        prop_assert_eq!(&topology.problems, &Vec::<String>::new());
        for (provider, &a) in addresses.iter().enumerate() {
            for (client, &b) in addresses.iter().enumerate() {
                let (supported, on_bus, distance) = kernel(&spots, zen, provider, client);
                let answer = match topology.between(a, b) {
                    Reach::Reachable(route) => {
                        prop_assert_eq!(route.distance, distance, "{} to {}", a, b);
                        (true, !matches!(route.via, Via::WhitelistedHostBridge { .. }))
                    }
                    Reach::Refused(_) => (false, false),
                    Reach::Unknown(what) => return Err(TestCaseError::fail(format!("{a} to {b}: {what:?}"))),
                };
                prop_assert_eq!(answer, (supported, on_bus), "{} to {} in {:?}", a, b, &spots);
            }
        }
    }
}
