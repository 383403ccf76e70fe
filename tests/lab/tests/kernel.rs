//! The kernel and its habanalabs module as we describe them: what is there, and what we say of a
//! driver without a card.

use gaudi_kernel::Driver;
use gaudi_lab::{is_loaded, kernel, modprobe, run};
use gaudi_seam::{ErrorKind, KernelSelector, NodeKind};
use gaudi_spec::gaudi2::{DEVICE, VENDOR};
use nix::sys::utsname::uname;

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn running_kernel_is_the_labs() {
    let name = uname().expect("uname");
    let release = name.release().to_string_lossy().into_owned();
    let (major, minor) = kernel();
    assert!(
        release.starts_with(&format!("{major}.{minor}.")),
        "the lab expects {major}.{minor}, the kernel is {release}"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn peer_to_peer_dma_matches_kernel_table() {
    let symbols = std::fs::read_to_string("/proc/kallsyms").expect("root reads the symbols");
    let there = symbols
        .lines()
        .any(|line| line.split_whitespace().nth(2) == Some("pci_p2pdma_distance_many"));
    assert_eq!(
        there,
        kernel() >= (7, 0),
        "6.12 of bookworm-security has none, 7.x has"
    );
}

/// One test, since the module stays loaded: first without the driver, then with it.
#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn unloaded_driver_differs_from_missing_card() {
    let driver = Driver::new();
    let open = || {
        driver
            .open(KernelSelector::Index(0), NodeKind::Control)
            .expect_err("a guest has no card")
    };
    let info = || {
        let output = run(&["gaudi", "info", "-d", "kernel:0"]);
        assert!(!output.status.success(), "there is no device to list");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };

    assert!(
        !is_loaded("habanalabs"),
        "nothing has loaded it yet, without a card no one asks for it"
    );
    let error = open();
    assert_eq!(error.kind(), ErrorKind::NotFound, "saw {error}");
    assert!(error.to_string().contains("not loaded"), "saw {error}");
    let stdout = info();
    assert!(
        stdout.contains("modprobe habanalabs"),
        "the next step is named: {stdout}"
    );

    modprobe("habanalabs");
    assert!(driver.indices().is_empty(), "the driver alone makes no nodes");
    assert!(driver.list().is_empty(), "and so there is nothing to list");
    let error = open();
    assert_eq!(error.kind(), ErrorKind::NotFound, "saw {error}");
    assert!(
        error.to_string().contains("loaded and has no device"),
        "saw {error}"
    );
    let stdout = info();
    assert!(stdout.contains("loaded and has no device"), "saw {stdout}");
    let list = run(&["gaudi", "list"]);
    let stdout = String::from_utf8_lossy(&list.stderr).into_owned();
    assert!(
        list.status.success() && stdout.contains("no device found"),
        "an empty list is no error: {stdout}"
    );
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn driver_takes_cards_of_our_vendor() {
    let release = uname().expect("uname").release().to_string_lossy().into_owned();
    let aliases = std::fs::read_to_string(format!("/lib/modules/{release}/modules.alias"))
        .expect("the lab writes the aliases");
    let cards: Vec<_> = aliases
        .lines()
        .filter(|line| line.ends_with(" habanalabs") && line.starts_with("alias pci:"))
        .collect();
    assert!(
        cards.len() >= 4,
        "Goya, two Gaudi and Gaudi2 at least, saw {cards:?}"
    );
    let ours = format!("pci:v{VENDOR:08X}d{DEVICE:08X}");
    assert!(
        cards.iter().any(|card| card.contains(&ours)),
        "Gaudi2 is {VENDOR:04x}:{DEVICE:04x}, saw {cards:?}"
    );
    for card in cards {
        assert!(
            card.contains(&format!("pci:v{VENDOR:08X}d")),
            "vendor {VENDOR:04x}: {card}"
        );
    }
}

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn the_modules_of_the_rdma_tests_load() {
    for name in ["rdma_rxe", "ib_uverbs", "rdma_ucm", "dummy", "veth", "vgem"] {
        modprobe(name);
    }
    assert!(
        std::path::Path::new("/sys/class/infiniband").exists(),
        "the RDMA core shows its devices there"
    );
}
