//! What `gaudi topo` reports for a BAR and a NIC, against what the kernel does when the one is
//! registered with the other.
//!
//! It runs on several machines (`machine` in kernels.toml): the kernel's answer is another one on
//! each.

mod topo_json;

use std::os::fd::AsRawFd;

use gaudi_lab::nic::Nic;
use gaudi_lab::rxe::{Build, skips};
use gaudi_lab::uverbs::{DmaBufRegion, Request, access, status};
use gaudi_lab::vfio::{BAR, Exclusive, ivshmem};
use gaudi_lab::{kernel, machine, modprobe, run};
use gaudi_sys::{Errno, PAGE};
use serde_json::Value;
use topo_json::topo;

#[test]
#[ignore = "runs in a guest: cargo xtask lab test"]
fn topo_says_what_the_kernel_does() {
    if skips("topo_says_what_the_kernel_does") {
        return;
    }
    let pci = Nic::open(Build::Patched);
    modprobe("dummy");
    // loading the module made dummy0 only
    let _ = run(&["ip", "link", "add", "dummy7", "type", "dummy"]);
    let nowhere = Nic::over(Build::Patched, "rxe7", "dummy7", "10.77.7.1");
    let address = ivshmem();
    let function = Exclusive::open();
    let (near, far) = (topo(&address, "rxe0"), topo(&address, "rxe7"));
    let export = function.export(BAR, 0, PAGE);
    if kernel() < (7, 0) {
        assert_eq!(near["refusal"], "no_p2pdma", "saw {near}");
        assert_eq!(far["refusal"], "no_p2pdma", "saw {far}");
        assert_eq!(export.err(), Some(Errno::ENOTTY), "nor does a BAR leave");
        return;
    }
    let buffer = export.expect("the BAR leaves as a dma-buf");
    let asked = DmaBufRegion {
        offset: 0,
        length: PAGE,
        iova: 0,
        fd: buffer.as_raw_fd(),
        access: access::ALL,
    };

    let register = pci.context.register_dmabuf(&asked);
    let wanted = match machine().as_deref() {
        None => ("reachable", Value::from("whitelisted_host_bridge")),
        Some("max") => ("refused", Value::Null),
        Some("max-switch") => ("reachable", Value::from("same_switch")),
        Some(other) => panic!("what does the kernel do on {other}?"),
    };
    assert_eq!(
        (&near["answer"], &near["via"]),
        (&wanted.0.into(), &wanted.1),
        "saw {near}"
    );
    assert_eq!(
        near["answer"] == "reachable",
        register.is_ok(),
        "the kernel answered {register:?}, gaudi topo {near}"
    );
    match register {
        Ok(region) => {
            let host = pci.host(PAGE as usize);
            let (remote, rkey) = (0, region.rkey);
            let done = pci.run(host.local(0, 4096), Request::Write { remote, rkey });
            assert_eq!(done, status::SUCCESS, "and bytes get there");
            pci.context.deregister(region).expect("it ends");
        }
        Err(errno) => {
            assert_eq!((errno, &near["refusal"]), (Errno::EINVAL, &"host_bridge".into()));
            let log = run(&["dmesg"]);
            let log = String::from_utf8_lossy(&log.stdout).into_owned();
            assert!(
                log.contains("do not share an upstream bridge or whitelisted host bridge"),
                "the kernel's reason is ours: {near}"
            );
        }
    }
    assert_eq!(far["refusal"], "not_pci", "saw {far}");
    assert_eq!(
        nowhere.context.register_dmabuf(&asked),
        Err(Errno::EINVAL),
        "the kernel refuses it too"
    );
}
