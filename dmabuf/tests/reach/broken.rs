//! Trees of no shape: nothing in them may stop us, hang us or make us grow.

use gaudi_dmabuf::reach::{Manifest, Reach, Recorder, Topology, resolve};
use proptest::prelude::*;

use crate::{at, card, manifest, nic, reach};

/// Reads a tree and asks everything of it.
fn survive(tree: &Manifest) -> Topology {
    let topology = Topology::read(tree);
    for &exporter in topology.functions.keys() {
        for importer in &topology.importers {
            if let Reach::Reachable(route) = topology.reach(exporter, importer) {
                let _ = topology.caveat(&route, importer);
            }
        }
        let _ = topology.ranking(exporter);
    }
    topology
}

/// Without one of its files a tree still gives the rest, and no answer that contradicts the whole
/// tree's.
#[test]
fn any_file_may_be_missing() {
    for name in ["client", "q35-switch", "sriov"] {
        let whole = manifest(name);
        let before = Topology::read(&whole);
        let text = whole.to_string();
        let mut folder = "";
        for line in text.lines() {
            let Some(entry) = line.strip_prefix("  ") else {
                folder = line.trim_end_matches('/');
                continue;
            };
            let path = format!("{folder}/{}", entry.split(' ').next().unwrap());
            let mut tree = whole.clone();
            tree.remove(&path);
            let after = survive(&tree);
            for exporter in after.accelerators() {
                for importer in &after.importers {
                    let Some(client) = importer.function else { continue };
                    let (old, new) = (
                        before.between(exporter.address, client),
                        after.between(exporter.address, client),
                    );
                    let contradicts = matches!((&old, &new), (Reach::Refused(_), Reach::Reachable(_)));
                    // Without `physfn` a virtual function looks like any other; without the class
                    // or port of a root device a bridge does.
                    assert!(!contradicts, "without {path}: {old:?} became {new:?}");
                }
            }
        }
    }
}

#[test]
fn a_missing_bridge_is_named() {
    let mut tree = manifest("q35-switch");
    tree.remove("/sys/bus/pci/devices/0000:02:01.0");
    let topology = Topology::read(&tree);
    let Reach::Unknown(what) = reach(&topology, 0, "rxe0") else {
        panic!("the tree has a hole");
    };
    assert_eq!(what, ["the bridge above 0000:04:00.0 is not in the tree"]);
}

#[test]
fn loops_and_stray_links_are_problems() {
    let mut tree = manifest("q35-max");
    let devices = "/sys/bus/pci/devices";
    for (name, target) in [
        ("0000:09:00.0", "0000:09:00.0"),
        ("0000:09:01.0", "../../../../../../../../etc/passwd"),
        ("0000:09:02.0", "../../../devices/pci0000:00/0000:00:01.0"),
        ("0000:09:03.0", "/"),
        ("not-an-address", "../../../devices/pci0000:00/0000:00:01.0"),
    ] {
        tree.put_link(&format!("{devices}/{name}"), target).unwrap();
    }
    let topology = survive(&tree);
    assert_eq!(topology.problems.len(), 5, "{:?}", topology.problems);
    assert!(
        topology.problems[0].contains("0000:09:00.0"),
        "{:?}",
        topology.problems
    );
    assert!(
        reach(&topology, 0, "rxe0").route().is_none(),
        "the rest is read as ever"
    );
    assert_eq!(resolve(&tree, &format!("{devices}/0000:09:03.0")).unwrap(), "/");
}

/// Two bridges that each claim to stand above the other: at most one of the paths continues its
/// bridge's.
#[test]
fn bridges_above_each_other_are_no_circle() {
    let mut tree = Manifest::default();
    for (name, path) in [
        (
            "0000:01:00.0",
            "/sys/devices/pci0000:00/0000:02:00.0/0000:01:00.0",
        ),
        (
            "0000:02:00.0",
            "/sys/devices/pci0000:00/0000:01:00.0/0000:02:00.0",
        ),
    ] {
        tree.put_text(&format!("{path}/vendor"), "0x1da3").unwrap();
        tree.put_link(&format!("/sys/bus/pci/devices/{name}"), path)
            .unwrap();
    }
    let topology = survive(&tree);
    let answer = topology.between(at("0000:01:00.0"), at("0000:02:00.0"));
    assert!(matches!(answer, Reach::Unknown(_)), "saw {answer:?}");
}

/// Virtual functions whose physical ones are below them.
#[test]
fn physical_functions_in_a_circle_end() {
    let mut tree = manifest("sriov");
    let switch = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";
    tree.put_link(&format!("{switch}/physfn"), "0000:04:00.0")
        .unwrap();
    let topology = survive(&tree);
    let answer = topology.reach(card(&topology, 0), nic(&topology, "mlx5_0"));
    assert!(
        matches!(&answer, Reach::Unknown(what) if what[0].contains("256 bridges")),
        "saw {answer:?}"
    );
}

#[test]
fn deep_and_wide_trees_are_bounded() {
    let mut tree = Manifest::default();
    let mut path = "/sys/devices/pci0000:00".to_owned();
    for bus in 0..200 {
        path = format!("{path}/0000:{bus:02x}:00.0");
        tree.put_link(&format!("/sys/bus/pci/devices/0000:{bus:02x}:00.0"), &path)
            .unwrap();
        tree.put_text(&format!("{path}/vendor"), "0x1da3").unwrap();
    }
    for index in 0..20_000 {
        let address = format!("{:04x}:00:{:02x}.{}", 1 + index / 256, index / 8 % 32, index % 8);
        let path = format!("/sys/devices/pci{:04x}:00/{address}", 1 + index / 256);
        tree.put_link(&format!("/sys/bus/pci/devices/{address}"), &path)
            .unwrap();
        tree.put_text(&format!("{path}/vendor"), "0x1234").unwrap();
    }
    let topology = Topology::read(&tree);
    assert!(topology.functions.len() <= 8192, "{}", topology.functions.len());
    assert!(
        topology.problems[0].contains("only 8192"),
        "{:?}",
        topology.problems[0]
    );
    let answer = topology.between(at("0000:c7:00.0"), at("0000:00:00.0"));
    assert!(
        matches!(answer, Reach::Unknown(_)),
        "nothing was read of ACS: saw {answer:?}"
    );
}

#[test]
fn a_recording_gives_the_same_answers() {
    for name in [
        "hls2-acs",
        "hls2-user",
        "epyc",
        "q35-switch",
        "q35-6.12",
        "sriov",
        "nothing",
    ] {
        let whole = manifest(name);
        let recorder = Recorder::new(&whole);
        let before = Topology::read(&recorder);
        let text = recorder.manifest().to_string();
        let again: Manifest = text
            .parse()
            .unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
        let after = Topology::read(&again);
        assert_eq!(before.functions, after.functions, "{name}");
        assert_eq!(
            (&before.importers, &before.kernel, &before.numa),
            (&after.importers, &after.kernel, &after.numa),
            "{name}"
        );
    }
}

/// Lines that a tree could have, in any order and with any holes.
fn line() -> impl Strategy<Value = String> {
    let address = (0_u8..3, 0_u8..4, 0_u8..2)
        .prop_map(|(bus, device, function)| format!("0000:{bus:02x}:{device:02x}.{function}"));
    let part = prop_oneof![
        4 => address,
        2 => prop::sample::select(vec!["..", ".", "pci0000:00", "sys", "devices", "bus", "pci", "net", "class", "physfn", "eth0"]).prop_map(str::to_owned),
        1 => "[ -~]{0,6}",
    ];
    let path = prop::collection::vec(part, 0..6).prop_map(|parts| parts.join("/"));
    let name = prop::sample::select(vec![
        "vendor",
        "device",
        "class",
        "config",
        "resource",
        "numa_node",
        "parent",
        "current_link_speed",
        "0000:00:00.0",
        "0000:01:00.0",
        "eth0",
        "rxe0",
        "distance",
        "modalias",
    ]);
    let folder = prop::sample::select(vec![
        "/sys/bus/pci/devices",
        "/sys/class/net",
        "/sys/class/infiniband",
        "/sys/devices/pci0000:00",
        "/sys/devices/system/cpu",
    ]);
    let text = prop_oneof![
        "[ -~]{0,40}",
        "0x[0-9a-f]{1,18}",
        Just("0x1da3".to_owned()),
        "[0-9. GT/s]{1,12}"
    ];
    prop_oneof![
        (folder.clone(), path.clone()).prop_map(|(folder, path)| format!("{folder}/{path}/")),
        folder.prop_map(|folder| format!("{folder}/")),
        (name.clone(), text).prop_map(|(name, text)| format!("  {name} = {text}")),
        (name.clone(), path.clone()).prop_map(|(name, path)| format!("  {name} -> ../../../devices/{path}")),
        (name.clone(), path).prop_map(|(name, path)| format!("  {name} -> {path}")),
        (name, 0_u32..5000, "( @[0-9a-f]{1,3}( [0-9a-f]{2}){1,8}){0,4}")
            .prop_map(|(name, size, bytes)| format!("  {name} : {size}{bytes}")),
    ]
}

/// A short text must not make a tree that fills the machine.
#[test]
fn manifest_memory_is_bounded() {
    let mut text = String::from("/sys/bus/pci/devices/\n");
    for number in 0..65 {
        text.push_str(&format!("  {number} : 1048576\n"));
    }
    let error = text.parse::<Manifest>().unwrap_err();
    assert_eq!(error.line, 65, "{error}");
    assert!(error.problem.contains("67108864 bytes in all"), "{error}");
    let deep = format!("/{}/\n", vec!["abcdefgh"; 250].join("/"));
    let error = deep.repeat(200).parse::<Manifest>().unwrap_err();
    assert!(error.problem.contains("bytes in all"), "{error}");
}

proptest! {
    #![proptest_config(gaudi_random::config(256))]

    #[test]
    fn any_text_parses_or_fails(text: String) {
        let _ = text.parse::<Manifest>();
    }

    /// Lines that are refused are left out, so that most of the text counts.
    #[test]
    fn any_tree_is_survived(lines in prop::collection::vec(line(), 0..60)) {
        let mut text = String::from("/sys/bus/pci/devices/\n");
        for line in lines {
            let longer = format!("{text}{line}\n");
            if longer.parse::<Manifest>().is_ok() {
                text = longer;
            }
        }
        let tree: Manifest = text.parse().unwrap();
        survive(&tree);
        prop_assert_eq!(tree.to_string().parse::<Manifest>().map(|tree| tree.to_string()), Ok(tree.to_string()));
    }

    /// A whole tree with some of its files changed to anything.
    #[test]
    fn any_content_is_survived(changes in prop::collection::vec((any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 0..80)), 1..8)) {
        let mut tree = manifest("sriov");
        let text = tree.to_string();
        let (mut paths, mut folder) = (Vec::new(), "");
        for line in text.lines() {
            match line.strip_prefix("  ") {
                Some(entry) => paths.push(format!("{folder}/{}", entry.split(' ').next().unwrap())),
                None => folder = line.trim_end_matches('/'),
            }
        }
        for (index, bytes) in changes {
            let path = index.get(&paths);
            tree.remove(path);
            let target = String::from_utf8_lossy(&bytes).into_owned();
            let size = bytes.len() as u64;
            if size % 2 == 0 { tree.put_bytes(path, size, bytes).unwrap() } else { tree.put_link(path, &target).unwrap() }
        }
        survive(&tree);
    }
}
