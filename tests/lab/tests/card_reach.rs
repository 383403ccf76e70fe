//! Which NIC reaches a card's memory: what the real driver answers and what `gaudi topo` reports,
//! on machines (`machine` in kernels.toml) whose processor Linux trusts with peer-to-peer DMA, and
//! does not, and with a switch above both.

mod chain;
mod common;
mod first_card;
mod topo_json;

use std::os::fd::AsRawFd as _;

use gaudi_lab::nic::Nic;
use gaudi_lab::rxe::{Build, skips};
use gaudi_lab::uverbs::{Request, status};
use gaudi_lab::vfio::functions;
use gaudi_lab::{card, kernel, machine};
use gaudi_spec::gaudi2::{DEVICE, VENDOR};
use gaudi_sys::Errno;
use serde_json::Value;
use topo_json::topo;

use chain::{LEN, exported, register, reopen};
use first_card::open;

#[test]
#[ignore = "runs in the lab: cargo xtask lab test"]
fn nic_reaches_card_where_machine_allows() {
    if skips("nic_reaches_card_where_machine_allows") {
        return;
    }
    let (answer, via) = match machine().as_deref() {
        // Debian's older kernels have no peer-to-peer DMA (CONFIG_PCI_P2PDMA).
        _ if kernel() < (7, 0) => ("refused", Value::Null),
        Some("gaudi2-chain") => ("reachable", Value::from("whitelisted_host_bridge")),
        Some("max-gaudi2") => ("refused", Value::Null),
        Some("max-switch-gaudi2") => ("reachable", Value::from("same_switch")),
        other => panic!("what does the kernel do on {other:?}?"),
    };
    drop(open());
    let nic = Nic::open(Build::Patched);
    let address = functions(VENDOR, DEVICE).pop().expect("a card on the bus");
    let row = topo(&address, "rxe0");
    assert_eq!((&row["answer"], &row["via"]), (&answer.into(), &via), "saw {row}");

    let io = reopen();
    let (fd, va, handle) = exported(&io);
    match register(&nic, fd.as_raw_fd()) {
        Ok(region) => {
            assert_eq!(answer, "reachable", "saw {row}");
            let host = nic.host(LEN);
            let (remote, rkey) = (0, region.rkey);
            assert_eq!(
                nic.run(host.local(0, LEN), Request::Write { remote, rkey }),
                status::SUCCESS
            );
            nic.context.deregister(region).expect("a region ends");
        }
        Err(errno) => {
            // common/memory.c:hl_map_dmabuf, where vfio-pci answers EINVAL.
            let (refusal, words) = match kernel() < (7, 0) {
                true => ("no_p2pdma", ""),
                false => (
                    "host_bridge",
                    "do not share an upstream bridge or whitelisted host bridge",
                ),
            };
            assert_eq!((errno, &row["refusal"]), (Errno::EPERM, &refusal.into()));
            let log = card::log();
            assert!(log.contains(words), "the kernel's reason is ours: {log}");
        }
    }
    drop(fd);
    io.mem_unmap(va).expect("it is not in use");
    io.mem_free(handle).expect("nor this");
}
