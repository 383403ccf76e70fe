//! Reachability on trees of real shapes, against the kernel's rule, and on trees of no shape at
//! all.

mod broken;
mod folder;
mod oracle;

use gaudi_dmabuf::reach::{Importer, Manifest, Reach, Refusal, Topology, Via, Why};
use gaudi_seam::PciAddress;

fn manifest(name: &str) -> Manifest {
    let path = format!("{}/tests/reach/fixtures/{name}.tree", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.parse().unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn topology(name: &str) -> Topology {
    let topology = Topology::read(&manifest(name));
    assert_eq!(topology.problems, [""; 0], "{name} is whole");
    topology
}

fn at(text: &str) -> PciAddress {
    text.parse().unwrap()
}

fn nic<'a>(topology: &'a Topology, name: &str) -> &'a Importer {
    let named = |nic: &&Importer| nic.rdma.iter().chain(&nic.nets).any(|own| own == name);
    topology
        .importers
        .iter()
        .find(named)
        .unwrap_or_else(|| panic!("{name} is found"))
}

fn card(topology: &Topology, index: usize) -> PciAddress {
    topology.accelerators().nth(index).expect("a card").address
}

fn reach(topology: &Topology, index: usize, name: &str) -> Reach {
    topology.reach(card(topology, index), nic(topology, name))
}

/// The way and the distance.
fn route(topology: &Topology, index: usize, name: &str) -> (Via, u32) {
    match reach(topology, index, name) {
        Reach::Reachable(route) => (route.via, route.distance),
        other => panic!("card {index} and {name}: wanted a route, saw {other:?}"),
    }
}

fn reason(topology: &Topology, index: usize, name: &str) -> String {
    match reach(topology, index, name) {
        Reach::Refused(refusal) => refusal.to_string(),
        other => panic!("card {index} and {name}: wanted a refusal, saw {other:?}"),
    }
}

/// The four cases that a kernel was seen to answer: Debian's 7.2 under QEMU, soft-RoCE with dma-buf
/// regions, a software Gaudi2.
#[test]
fn the_cases_that_a_kernel_answered() {
    let epyc = topology("q35-epyc");
    let (via, distance) = route(&epyc, 0, "rxe0");
    let trusted = Via::WhitelistedHostBridge {
        trusted: Why::Processor,
        redirects: vec![],
    };
    assert_eq!((via, distance), (trusted, 2), "-cpu EPYC, root bus: allowed");

    let max = topology("q35-max");
    assert_eq!(
        reason(&max, 0, "rxe0"),
        "no common upstream bridge, and the kernel does not trust host bridge pci0000:00 (8086:29c0)",
        "-cpu max, root bus: refused"
    );

    let switch = topology("q35-switch");
    let upstream = Via::SameSwitch(at("0000:01:00.0"));
    assert_eq!(
        route(&switch, 0, "rxe0"),
        (upstream, 4),
        "-cpu max, one switch: allowed"
    );

    for topology in [&epyc, &max, &switch] {
        assert_eq!(
            reason(topology, 0, "rxe1"),
            "not a PCI device",
            "soft-RoCE on a dummy interface"
        );
    }
}

#[test]
fn soft_roce_stands_on_its_interface() {
    let topology = topology("q35-switch");
    let on_nic = nic(&topology, "rxe0");
    assert_eq!(
        (on_nic.function, on_nic.software),
        (Some(at("0000:03:00.0")), true)
    );
    assert_eq!(on_nic.nets, ["eth0"]);
    let on_dummy = nic(&topology, "rxe1");
    assert_eq!((on_dummy.function, on_dummy.software), (None, true));
    assert_eq!(on_dummy.nets, ["dummy0"]);
}

#[test]
fn a_kernel_without_p2pdma_refuses_every_pair() {
    let topology = topology("q35-6.12");
    assert_eq!(topology.kernel.p2pdma, Some(false));
    for name in ["rxe0", "rxe1"] {
        assert_eq!(reach(&topology, 0, name), Reach::Refused(Refusal::NoP2pdma));
    }
}

#[test]
fn a_server_with_switches() {
    let topology = topology("hls2");
    assert_eq!(topology.accelerators().count(), 8);
    for card in 0..8 {
        let own = card / 2;
        for other in 0..4 {
            let (via, distance) = route(&topology, card, &format!("mlx5_{other}"));
            if own == other {
                assert!(matches!(via, Via::SameSwitch(_)), "card {card}: saw {via:?}");
                assert_eq!(distance, 4, "two ports up, two down");
            } else {
                let Via::WhitelistedHostBridge { trusted, redirects } = via else {
                    panic!("card {card}, NIC {other}: saw {via:?}");
                };
                assert!(
                    matches!(&trusted, Why::Table(roots) if roots.len() == 2),
                    "saw {trusted:?}"
                );
                assert_eq!((redirects, distance), (vec![], 8), "four ports each to the root");
            }
        }
        let address = topology.accelerators().nth(card).unwrap().address;
        let best: Vec<String> = topology
            .ranking(address)
            .iter()
            .map(|choice| choice.importer.name())
            .collect();
        let neighbour = own ^ 1;
        assert_eq!(
            best[..2],
            [format!("mlx5_{own}"), format!("mlx5_{neighbour}")],
            "own switch, then own socket"
        );
        let far = if own < 2 { "mlx5_3" } else { "mlx5_1" };
        assert_eq!(
            best[3..],
            [far, "eno1"],
            "the other socket comes last, and behind it what has no RDMA"
        );
    }
    let bars = &topology.function(card(&topology, 0)).unwrap().bars;
    assert_eq!(
        bars.last().map(|bar| (bar.index, bar.size, bar.io)),
        Some((4, 128 << 30, false))
    );
}

#[test]
fn acs_sends_a_switchs_packets_up() {
    let topology = topology("hls2-acs");
    let Reach::Reachable(route) = reach(&topology, 0, "mlx5_0") else {
        panic!("the host bridge is in the table");
    };
    let Via::WhitelistedHostBridge { redirects, .. } = &route.via else {
        panic!("saw {:?}", route.via);
    };
    assert_eq!(
        redirects[..],
        [at("0000:17:00.0"), at("0000:17:08.0")],
        "the two lower ports, not the root port above"
    );
    assert_eq!(route.distance, 4);
    assert_eq!(
        topology.caveat(&route, nic(&topology, "mlx5_0")),
        None,
        "nothing is added to a way that goes up anyway"
    );

    let client = crate::topology("client-acs");
    let refused = reach(&client, 1, "mlx5_1");
    let Reach::Refused(refusal) = &refused else {
        panic!("saw {refused:?}");
    };
    assert_eq!(
        refusal.to_string(),
        "ACS of 0000:04:01.0, 0000:04:02.0 sends packets up to the root complex, and the kernel does not trust host bridge \
         pci0000:00 (8086:8a12)"
    );
    assert!(
        refusal
            .remedy()
            .contains("pci=disable_acs_redir=0000:04:01.0;0000:04:02.0"),
        "saw {}",
        refusal.remedy()
    );
}

#[test]
fn unknown_host_bridge_refuses_root_ports_only() {
    let topology = topology("client");
    for (card, name) in [(0, "mlx5_0"), (0, "mlx5_1"), (1, "mlx5_0")] {
        assert!(
            reason(&topology, card, name).starts_with("no common upstream bridge"),
            "card {card}, {name}"
        );
    }
    assert_eq!(
        route(&topology, 1, "mlx5_1"),
        (Via::SameSwitch(at("0000:03:00.0")), 4)
    );
}

#[test]
fn unreadable_acs_is_unknown_with_its_ports() {
    let topology = topology("hls2-user");
    let (via, _) = route(&topology, 0, "mlx5_0");
    let Via::Undetermined { bridge, unread } = via else {
        panic!("either way is allowed, saw {via:?}");
    };
    assert_eq!(
        (bridge, unread.len()),
        (at("0000:16:00.0"), 5),
        "two ends, two lower ports and the upper one"
    );
    assert!(
        matches!(route(&topology, 0, "mlx5_3").0, Via::WhitelistedHostBridge { .. }),
        "ACS decides nothing there"
    );

    let mut tree = manifest("hls2-user");
    // Another host bridge: now ACS decides whether the pair is allowed at all.
    tree.put_text("/sys/devices/pci0000:15/0000:15:00.0/device", "0x8a12\n")
        .unwrap();
    let topology = Topology::read(&tree);
    let Reach::Unknown(what) = reach(&topology, 0, "mlx5_0") else {
        panic!("saw {:?}", reach(&topology, 0, "mlx5_0"));
    };
    assert!(
        what[0].starts_with("ACS of 0000:18:00.0, 0000:17:00.0"),
        "saw {what:?}"
    );
}

#[test]
fn zen_is_trusted_across_root_complexes() {
    let topology = topology("epyc");
    for name in ["mlx5_0", "mlx5_1", "mlx5_2"] {
        let (via, distance) = route(&topology, 0, name);
        assert!(
            matches!(
                via,
                Via::WhitelistedHostBridge {
                    trusted: Why::Processor,
                    ..
                }
            ),
            "{name}: saw {via:?}"
        );
        assert_eq!(distance, 4);
    }
    let ranking = topology.ranking(card(&topology, 0));
    let numa: Vec<_> = ranking
        .iter()
        .map(|choice| (choice.importer.name(), choice.numa_distance))
        .collect();
    assert_eq!(
        numa,
        [
            ("mlx5_0".into(), Some(10)),
            ("mlx5_1".into(), Some(10)),
            ("mlx5_2".into(), Some(32))
        ]
    );
}

/// The kernel's rule is for the vendor AMD alone, and from family 0x17 on.
#[test]
fn other_processors_are_not_trusted() {
    for (alias, trusted) in [
        ("ven0002fam0017mod0001", true),
        ("ven0002fam001Amod0001", true),
        ("ven0002fam0016mod0001", false),
        ("ven0009fam0018mod0001", false),
        ("ven0000fam0017mod0001", false),
    ] {
        let mut tree = manifest("q35-epyc");
        let text = format!("cpu:type:x86,{alias}:feature:,0000\n");
        tree.put_text("/sys/devices/system/cpu/modalias", &text).unwrap();
        let topology = Topology::read(&tree);
        assert_eq!(reach(&topology, 0, "rxe0").route().is_some(), trusted, "{alias}");
    }
    let mut tree = manifest("q35-epyc");
    tree.remove("/sys/devices/system/cpu/modalias");
    let Reach::Unknown(what) = reach(&Topology::read(&tree), 0, "rxe0") else {
        panic!("an unknown processor decides");
    };
    assert!(what[0].contains("modalias"), "saw {what:?}");
}

#[test]
fn same_bridge_rows_trust_one_host_bridge() {
    let topology = topology("xeon-e5");
    let (via, distance) = route(&topology, 0, "mlx5_0");
    assert!(
        matches!(via, Via::WhitelistedHostBridge { .. }),
        "one host bridge: saw {via:?}"
    );
    assert_eq!(distance, 4);
    assert_eq!(
        reason(&topology, 0, "mlx5_1"),
        "no common upstream bridge, and the kernel does not trust host bridge pci0000:00 (8086:3c00), pci0000:80 (8086:3c01)"
    );
}

#[test]
fn listed_servers_are_trusted_across_sockets() {
    let topology = topology("icelake-server");
    for (name, numa) in [("mlx5_0", 10), ("mlx5_1", 20)] {
        assert!(
            matches!(
                route(&topology, 0, name).0,
                Via::WhitelistedHostBridge {
                    trusted: Why::Table(_),
                    ..
                }
            ),
            "{name}"
        );
        let nic = nic(&topology, name).function.unwrap();
        assert_eq!(topology.numa_distance(card(&topology, 0), nic), Some(numa));
    }
}

#[test]
fn virtual_function_routes_as_its_physical_one() {
    let topology = topology("sriov");
    let names: Vec<String> = topology.importers.iter().map(Importer::name).collect();
    assert_eq!(names, ["mlx5_0", "mlx5_1"], "an idle virtual function is no NIC");
    for name in names {
        assert_eq!(
            route(&topology, 0, &name),
            (Via::SameSwitch(at("0000:01:00.0")), 4),
            "{name}"
        );
    }
}

#[test]
fn functions_of_one_card_share_root_port() {
    let topology = topology("epyc");
    let between = topology.between(at("0000:41:00.0"), at("0000:41:00.1"));
    let route = between.route().expect("allowed");
    assert!(
        matches!(&route.via, Via::WhitelistedHostBridge { redirects, .. } if redirects[..] == [at("0000:40:01.1")]),
        "ACS of the common port itself counts: saw {route:?}"
    );
    assert_eq!(route.distance, 2);
    let mut tree = manifest("epyc");
    let port = "/sys/devices/pci0000:40/0000:40:01.1";
    tree.put_bytes(&format!("{port}/config"), 256, vec![0; 256])
        .unwrap();
    let topology = Topology::read(&tree);
    let between = topology.between(at("0000:41:00.0"), at("0000:41:00.1"));
    assert_eq!(between.route().map(|route| route.distance), Some(2));
    let same = topology.between(at("0000:41:00.0"), at("0000:41:00.0"));
    assert_eq!(
        same.route().map(|route| (route.via.clone(), route.distance)),
        Some((Via::SameFunction, 0))
    );
}

#[test]
fn translation_is_told_beside_a_short_way() {
    let mut tree = manifest("client");
    let nic_folder = "/sys/devices/pci0000:00/0000:00:1c.0/0000:03:00.0/0000:04:02.0/0000:06:00.0";
    tree.put_link(
        &format!("{nic_folder}/iommu_group"),
        "../../../../../../kernel/iommu_groups/7",
    )
    .unwrap();
    for (kind, has_caveat) in [("DMA", true), ("DMA-FQ", true), ("identity", false)] {
        tree.put_text("/sys/kernel/iommu_groups/7/type", kind).unwrap();
        let topology = Topology::read(&tree);
        let reach = reach(&topology, 1, "mlx5_1");
        let caveat = topology.caveat(reach.route().unwrap(), nic(&topology, "mlx5_1"));
        assert_eq!(caveat.is_some(), has_caveat, "{kind}: {caveat:?}");
    }
}

#[test]
fn machine_without_pci_is_one_problem() {
    let topology = Topology::read(&manifest("nothing"));
    assert_eq!((topology.functions.len(), topology.importers.len()), (0, 0));
    assert!(
        topology.problems[0].starts_with("/sys/bus/pci/devices: "),
        "{:?}",
        topology.problems
    );
}
