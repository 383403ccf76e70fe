//! RDMA devices of `/sys/class/infiniband`, read without any library.

use gaudi::dmabuf::reach::{Tree, resolve};

use super::{DmaBuf, Nic, Port, Row};

const CLASS: &str = "/sys/class/infiniband";
/// The most devices, ports and addresses that are read, of each.
const MOST: usize = 4096;
/// The longest value of a file.
const LONGEST: usize = 4096;
/// The most rows of a port's table of addresses that are read.
const MOST_GIDS: usize = 1024;

/// Drivers whose RDMA part has `reg_user_mr_dmabuf` in Linux 7.3, by the name that their function's
/// driver has; rdma_rxe and siw have none.
pub(crate) const WITH_DMABUF: &[&str] = &[
    "mlx5_core",
    "efa",
    "ice",
    "i40e",
    "idpf",
    "irdma",
    "bnxt_en",
    "ionic",
    "mana",
];

/// Reads a value. `None` if the file is missing, cannot be read or is empty.
fn text(tree: &dyn Tree, path: &str) -> Option<String> {
    let real = resolve(tree, path).ok()?;
    let bytes = tree.read(&real, LONGEST).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let text: String = text.trim().chars().filter(|c| !c.is_control()).collect();
    (!text.is_empty()).then_some(text)
}

fn names(tree: &dyn Tree, path: &str) -> Vec<String> {
    let real = resolve(tree, path);
    // A folder that cannot be read has no names.
    let mut names = real.and_then(|path| tree.names(&path)).unwrap_or_default();
    names.truncate(MOST);
    names
}

/// Returns the names in a folder that are numbers, sorted.
fn numbers(tree: &dyn Tree, path: &str) -> Vec<u32> {
    let names = names(tree, path);
    let mut numbers: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

/// Returns `4: ACTIVE` as `ACTIVE`.
fn word(value: Option<String>) -> Option<String> {
    value.map(|value| match value.split_once(": ") {
        Some((_, word)) => word.to_owned(),
        None => value,
    })
}

/// Returns every RDMA device, by name.
pub(super) fn read(tree: &dyn Tree) -> Vec<Nic> {
    names(tree, CLASS).iter().map(|name| nic(tree, name)).collect()
}

fn nic(tree: &dyn Tree, name: &str) -> Nic {
    let folder = format!("{CLASS}/{name}");
    let of = |file: &str| text(tree, &format!("{folder}/{file}"));
    // Only a device in software names the interface below it: rdma_rxe, if it has no function.
    let software = of("parent").is_some();
    let driver = software.then(|| "rdma_rxe".to_owned());
    let ports = numbers(tree, &format!("{folder}/ports")).into_iter();
    Nic {
        name: name.to_owned(),
        node_type: word(of("node_type")),
        guid: of("node_guid"),
        firmware: of("fw_ver").filter(|version| version != "0.0.0"),
        function: None,
        numa_node: None,
        software,
        ports: ports.map(|number| port(tree, &folder, number)).collect(),
        dmabuf: likely(driver.as_deref()),
        driver,
        reach: Vec::new(),
        limits: None,
        queue_pairs: Vec::new(),
        regions: Vec::new(),
    }
}

/// Whether a driver registers dma-bufs, by its name.
pub(super) fn likely(driver: Option<&str>) -> DmaBuf {
    let (answer, why) = match driver {
        Some(driver) if WITH_DMABUF.contains(&driver) => {
            ("likely", format!("{driver} has the operation in Linux 7.3"))
        }
        Some(driver) => ("unlikely", format!("{driver} has no such operation in Linux 7.3")),
        None => ("unknown", "its driver is unknown".to_owned()),
    };
    DmaBuf {
        answer,
        by: "driver",
        why,
    }
}

fn port(tree: &dyn Tree, folder: &str, number: u32) -> Port {
    let folder = format!("{folder}/ports/{number}");
    let of = |file: &str| text(tree, &format!("{folder}/{file}"));
    let gids = gids(tree, &folder);
    let link_layer = of("link_layer");
    let mtu_bytes = link_layer
        .as_deref()
        .filter(|layer| *layer == "Ethernet")
        .and_then(|_| gids.iter().find_map(|row| row.netdev.as_deref()))
        .and_then(|netdev| text(tree, &format!("/sys/class/net/{netdev}/mtu"))?.parse().ok())
        .and_then(roce_mtu);
    Port {
        number,
        state: word(of("state")),
        phys_state: word(of("phys_state")),
        link_layer,
        rate: of("rate"),
        mtu_bytes,
        mtu_from: mtu_bytes.map(|_| "interface"),
        gids,
    }
}

/// Returns the path MTU of RoCE on an interface: the largest that fits the interface's MTU with the
/// longest headers (`iboe_get_mtu`, rdma/ib_addr.h).
fn roce_mtu(interface: u32) -> Option<u32> {
    // GRH 40, UDP 8, BTH 12, XRC 4, atomics 28, ICRC 4.
    let room = interface.checked_sub(96)?;
    [4096, 2048, 1024, 512, 256].into_iter().find(|mtu| *mtu <= room)
}

fn gids(tree: &dyn Tree, port: &str) -> Vec<Row> {
    let indices = numbers(tree, &format!("{port}/gids")).into_iter();
    indices
        .take(MOST_GIDS)
        .filter_map(|index| {
            let gid = text(tree, &format!("{port}/gids/{index}"))?;
            let address: std::net::Ipv6Addr = gid.parse().ok()?;
            // An empty row.
            if address.is_unspecified() {
                return None;
            }
            Some(Row {
                index,
                gid: address.to_string(),
                kind: text(tree, &format!("{port}/gid_attrs/types/{index}")),
                netdev: text(tree, &format!("{port}/gid_attrs/ndevs/{index}")),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaudi::dmabuf::reach::Manifest;

    fn of(text: &str) -> Vec<Nic> {
        let tree: Manifest = text.parse().unwrap();
        read(&tree)
    }

    #[test]
    fn packets_are_as_the_kernel_cuts_them() {
        for (interface, packet) in [
            (9000, Some(4096)),
            (4200, Some(4096)),
            (4191, Some(2048)),
            (1500, Some(1024)),
            (352, Some(256)),
            (351, None),
            (0, None),
        ] {
            assert_eq!(roce_mtu(interface), packet, "an interface of {interface}");
        }
    }

    #[test]
    fn soft_roce_lacks_firmware_and_dma_bufs() {
        let nics = of("/sys/class/infiniband/
  rxe0 -> ../../devices/virtual/infiniband/rxe0
/sys/devices/virtual/infiniband/rxe0/
  parent = eth0
  fw_ver = 0.0.0
/sys/devices/virtual/infiniband/rxe0/ports/1/
  state = 4: ACTIVE
  link_layer = Ethernet
/sys/devices/virtual/infiniband/rxe0/ports/1/gids/
  0 = fe80:0000:0000:0000:5054:00ff:fe12:3456
  1 = 0000:0000:0000:0000:0000:ffff:0a00:0001
  10 = 0000:0000:0000:0000:0000:0000:0000:0000
");
        let nic = &nics[0];
        assert!(nic.software && nic.firmware.is_none(), "{nic:?}");
        assert_eq!(nic.dmabuf.answer, "unlikely");
        assert_eq!(nic.ports[0].state.as_deref(), Some("ACTIVE"));
        let gids: Vec<&str> = nic.ports[0].gids.iter().map(|row| row.gid.as_str()).collect();
        assert_eq!(gids, ["fe80::5054:ff:fe12:3456", "::ffff:10.0.0.1"]);
    }

    #[test]
    fn broken_files_leave_gaps_and_no_panic() {
        let nics = of("/sys/class/infiniband/
  x -> ../../devices/virtual/infiniband/x
  dangling -> ../../missing
/sys/devices/virtual/infiniband/x/
  node_guid = garbage
/sys/devices/virtual/infiniband/x/ports/y/
/sys/devices/virtual/infiniband/x/ports/4294967296/
/sys/devices/virtual/infiniband/x/ports/2/gids/
  0 = no address
  z = fe80::1
");
        assert_eq!(nics.len(), 2);
        let x = nics.iter().find(|nic| nic.name == "x").unwrap();
        assert_eq!(x.ports.len(), 1);
        assert!(x.ports[0].gids.is_empty() && x.ports[0].state.is_none(), "{x:?}");
    }
}
