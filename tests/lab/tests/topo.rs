//! `gaudi topo` in a guest, against the machine that QEMU builds and what the kernel lists.

use std::collections::BTreeSet;

use gaudi_dmabuf::reach::{Folder, Importer, Processor, Reach, Refusal, Topology, Via, Why};
use gaudi_lab::{kernel, run};
use gaudi_seam::PciAddress;
use nix::sys::utsname::uname;
use serde_json::Value;

fn document(arguments: &[&str]) -> Value {
    let output = run(&[&["gaudi", "topo", "--json"], arguments].concat());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success(),
        "gaudi topo must work in a guest, it stderr: {stderr}"
    );
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

fn function<'a>(document: &'a Value, address: &str) -> &'a Value {
    let functions = document["functions"].as_array().expect("functions");
    let found = functions.iter().find(|row| row["address"] == address);
    found.unwrap_or_else(|| panic!("{address} is on the bus, saw {functions:?}"))
}

/// `-M q35 -cpu EPYC -device virtio-serial-pci`.
#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn tree_matches_qemus() {
    let document = document(&[]);
    let release = uname().expect("uname").release().to_string_lossy().into_owned();
    assert_eq!(document["kernel_release"], release.as_str());
    assert_eq!(
        document["kernel_p2pdma"],
        kernel() >= (7, 0),
        "6.12 of bookworm-security has none, 7.x has"
    );
    assert_eq!(document["processor"]["vendor"], "amd", "-cpu EPYC");
    assert_eq!(document["processor"]["family"], 0x17, "-cpu EPYC is Zen");
    assert_eq!(
        document["problems"],
        Value::Array(Vec::new()),
        "a guest's tree is whole"
    );
    assert_eq!(document["host_bridges"][0]["name"], "pci0000:00");
    assert_eq!(document["host_bridges"][0]["first_function"], "0000:00:00.0");
    assert_eq!(document["host_bridges"][0]["trusted"], true, "by its processor");

    for (address, vendor, device, class) in [
        ("0000:00:00.0", "0x8086", "0x29c0", "0x060000"),
        ("0000:00:1f.0", "0x8086", "0x2918", "0x060100"),
        ("0000:00:1f.2", "0x8086", "0x2922", "0x010601"),
    ] {
        let row = function(&document, address);
        assert_eq!(
            (&row["vendor_id"], &row["device_id"], &row["class"]),
            (&vendor.into(), &device.into(), &class.into()),
            "q35's own {address}"
        );
        assert_eq!(row["parent"], "pci0000:00", "on the root bus");
        assert_ne!(
            row["acs"]["state"], "unread",
            "root reads all of configuration space"
        );
    }
    let functions = document["functions"].as_array().expect("functions");
    let serial = functions
        .iter()
        .filter(|row| row["driver"] == "virtio-pci" && row["vendor_id"] == "0x1af4");
    assert!(
        serial.count() >= 1,
        "the lab's channel is a virtio function: {functions:?}"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn every_listed_function_is_read() {
    let topology = Topology::read(&Folder::new("/"));
    let names = std::fs::read_dir("/sys/bus/pci/devices").expect("sysfs is mounted");
    let listed: BTreeSet<String> = names
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("ASCII"))
        .collect();
    let read: BTreeSet<String> = topology.functions.keys().map(PciAddress::to_string).collect();
    assert_eq!(read, listed);
    for (address, function) in &topology.functions {
        // The same fact from another file: `uevent` has PCI_ID=VVVV:DDDD and PCI_CLASS without
        // leading zeros.
        let uevent =
            std::fs::read_to_string(format!("/sys/bus/pci/devices/{address}/uevent")).expect("uevent");
        let value = |key: &str| {
            let line = uevent.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap_or_else(|| panic!("{address}: {key} in {uevent}"))
                .to_owned()
        };
        let ids = format!(
            "{:04X}:{:04X}",
            function.vendor.expect("vendor"),
            function.device.expect("device")
        );
        assert_eq!(value("PCI_ID="), ids, "{address}");
        assert_eq!(
            value("PCI_CLASS="),
            format!("{:X}", function.class.expect("class")),
            "{address}"
        );
        let driver = uevent.lines().find_map(|line| line.strip_prefix("DRIVER="));
        assert_eq!(function.driver.as_deref(), driver, "{address}");
    }
}

/// On q35's root bus nothing is above two functions; EPYC is trusted, and a kernel without P2PDMA
/// allows nothing.
#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn root_bus_functions_connect_through_the_cpu() {
    let mut topology = Topology::read(&Folder::new("/"));
    let root: Vec<PciAddress> = topology.below_host(0).map(|function| function.address).collect();
    assert!(root.len() >= 4, "q35 has that many: {root:?}");
    let importer = Importer {
        rdma: Vec::new(),
        nets: Vec::new(),
        function: Some(root[1]),
        software: false,
        is_up: None,
    };
    let answer = topology.reach(root[2], &importer);
    if kernel() < (7, 0) {
        assert_eq!(answer, Reach::Refused(Refusal::NoP2pdma));
        return;
    }
    let route = answer
        .route()
        .unwrap_or_else(|| panic!("EPYC is trusted, saw {answer:?}"));
    assert!(
        matches!(
            route.via,
            Via::WhitelistedHostBridge {
                trusted: Why::Processor,
                ..
            }
        ),
        "saw {route:?}"
    );
    assert_eq!(route.distance, 2);

    // `-cpu max` of QEMU is AMD of family 6.
    topology.processor = Some(Processor::X86 { vendor: 2, family: 6 });
    let answer = topology.reach(root[2], &importer);
    let Reach::Refused(refusal) = &answer else {
        panic!("q35's host bridge is in no table, saw {answer:?}");
    };
    assert!(
        refusal.to_string().contains("pci0000:00 (8086:29c0)"),
        "saw {refusal}"
    );
}
