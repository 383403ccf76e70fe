//! The PCI tree of a machine, read from sysfs.

use std::collections::{BTreeMap, BTreeSet};

use gaudi_seam::PciAddress;
use gaudi_sys::parse::hexadecimal;

use super::attributes::{Attributes, class, printable};
use super::config::{Acs, Config, EXTENDED, PortType};
use super::kernel_option::{has_function, kernel_option};
use super::tree::{Node, Tree, resolve};

/// The most functions that are looked at.
const MOST_FUNCTIONS: usize = 8192;
/// The most members of one class.
const MOST_MEMBERS: usize = 1024;
/// The most bridges above a function: more than a domain has buses.
pub(super) const DEEPEST: usize = 256;
/// The most problems that are kept.
const MOST_PROBLEMS: usize = 100;
/// PCI vendor Habana Labs (habanalabs_drv.c `PCI_VENDOR_ID_HABANALABS`).
const HABANA: u32 = 0x1da3;
/// Where all functions are listed.
const DEVICES: &str = "/sys/bus/pci/devices";

/// What the kernel itself brings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Its release, as `uname -r`.
    pub release: Option<String>,
    /// Whether it was built with `CONFIG_PCI_P2PDMA`; without it every pair is refused.
    pub p2pdma: Option<bool>,
}

/// The processor, from /sys/devices/system/cpu/modalias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Processor {
    /// Vendor (arch/x86/include/asm/processor.h: 0 Intel, 2 AMD, 9 Hygon) and family.
    X86 {
        /// Vendor.
        vendor: u16,
        /// Family.
        family: u16,
    },
    /// Another architecture.
    Other,
}

/// A host bridge: where a PCI tree hangs on the root complex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostBridge {
    /// Its name in sysfs, as `pci0000:00`.
    pub name: String,
    /// Its root bus, if the name contains it.
    pub bus: Option<u8>,
    /// Its folder.
    pub path: String,
}

/// What a function hangs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parent {
    /// A host bridge: index in [`Topology::host_bridges`].
    Host(usize),
    /// A bridge.
    Bridge(PciAddress),
    /// A folder that should be a bridge and is not listed as one.
    Missing,
}

/// An IOMMU group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IommuGroup {
    /// Its number.
    pub number: u32,
    /// How its addresses are translated: `DMA`, `DMA-FQ`, `identity`, `blocked`.
    pub kind: Option<String>,
}

impl IommuGroup {
    /// Whether a device's addresses are translated.
    pub fn translates(&self) -> bool {
        self.kind.as_deref().is_some_and(|kind| kind.starts_with("DMA"))
    }
}

/// Speed and width of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Speed {
    /// Millions of transfers a second on each lane.
    pub megatransfers: u32,
    /// Lanes.
    pub lanes: u32,
}

impl Speed {
    /// For comparison: lanes times speed.
    pub fn weight(self) -> u64 {
        u64::from(self.megatransfers) * u64::from(self.lanes)
    }
}

/// A function's link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Link {
    /// As it runs.
    pub current: Option<Speed>,
    /// As it could.
    pub max: Option<Speed>,
}

/// A base address register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bar {
    /// Which of the six.
    pub index: u8,
    /// First byte, as the CPU sees it.
    pub start: u64,
    /// Bytes; 0 for all 2^64.
    pub size: u64,
    /// Ports instead of memory (`IORESOURCE_IO`).
    pub io: bool,
    /// Prefetchable (`IORESOURCE_PREFETCH`).
    pub prefetchable: bool,
}

/// A PCI function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Where.
    pub address: PciAddress,
    /// Its folder, without links.
    pub path: String,
    /// What it hangs on.
    pub parent: Parent,
    /// Vendor.
    pub vendor: Option<u16>,
    /// Device.
    pub device: Option<u16>,
    /// Class, subclass and interface: 0x060400 is a bridge.
    pub class: Option<u32>,
    /// Driver bound to it.
    pub driver: Option<String>,
    /// NUMA node.
    pub numa_node: Option<u32>,
    /// IOMMU group; `None` without an IOMMU.
    pub iommu: Option<IommuGroup>,
    /// What was read from configuration space.
    pub config: Config,
    /// Link.
    pub link: Link,
    /// Base address registers in use.
    pub bars: Vec<Bar>,
    /// The physical function of a virtual one.
    pub physical: Option<PciAddress>,
    /// `accelN` or `hlN`.
    pub accelerators: Vec<String>,
    /// RDMA devices.
    pub rdma: Vec<String>,
    /// Network interfaces.
    pub nets: Vec<String>,
    /// NVMe controllers.
    pub nvme: Vec<String>,
}

impl Function {
    /// Whether it is a bridge from PCI to PCI, which ports of switches and of the root are too
    /// (class 0604).
    pub fn is_bridge(&self) -> bool {
        self.class.is_some_and(|class| class >> 8 == 0x0604)
    }

    /// Whether it is a Habana accelerator.
    pub fn is_accelerator(&self) -> bool {
        self.vendor.map(u32::from) == Some(HABANA)
    }

    /// Whether it is a NIC: what has an RDMA device or an interface, or a network controller (class
    /// 02) that is not an idle virtual function.
    pub fn is_nic(&self) -> bool {
        let controller = self.class.is_some_and(|class| class >> 16 == 0x02) && self.physical.is_none();
        !self.is_accelerator() && (controller || !self.rdma.is_empty() || !self.nets.is_empty())
    }

    /// What kind of port it is; if configuration space was not read, the kind that its place
    /// implies.
    pub fn port(&self) -> Option<PortType> {
        let root = matches!(self.parent, Parent::Host(_));
        let inferred = self.is_bridge() && root && self.config.express == Some(true);
        self.config.port.or(inferred.then_some(PortType::RootPort))
    }
}

/// A device that accesses an accelerator's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Importer {
    /// RDMA devices of it.
    pub rdma: Vec<String>,
    /// Network interfaces of it.
    pub nets: Vec<String>,
    /// The PCI function that the kernel finds above it; nothing for a device that is not on PCI.
    pub function: Option<PciAddress>,
    /// An RDMA device in software (rxe, siw) is among them: its transfers are the CPU's.
    pub software: bool,
    /// Whether a port of its RDMA devices is ACTIVE; `None` if no port's state can be read.
    pub is_up: Option<bool>,
}

/// The most ports of one device that are read.
const MOST_PORTS: usize = 64;

impl Importer {
    /// Its first RDMA device, else its first interface, else its address.
    pub fn name(&self) -> String {
        let named = self.rdma.first().or(self.nets.first()).cloned();
        named
            .or(self.function.map(|function| function.to_string()))
            .unwrap_or_default()
    }
}

/// A machine's PCI tree, its accelerators and NICs.
#[derive(Debug, Clone, Default)]
pub struct Topology {
    /// The kernel.
    pub kernel: Kernel,
    /// The processor; `None` if unknown.
    pub processor: Option<Processor>,
    /// Host bridges, by name.
    pub host_bridges: Vec<HostBridge>,
    /// Functions, by address.
    pub functions: BTreeMap<PciAddress, Function>,
    /// NICs on PCI by address, then RDMA devices that are not on PCI.
    pub importers: Vec<Importer>,
    /// Distances of NUMA nodes: 10 is a node to itself.
    pub numa: BTreeMap<u32, Vec<u32>>,
    /// What is broken in the tree.
    pub problems: Vec<String>,
}

impl Topology {
    /// Reads a tree. What is missing or broken leaves a gap or a problem, never an error: half a
    /// picture is better than none.
    pub fn read(tree: &dyn Tree) -> Self {
        let mut topology = Self {
            kernel: kernel(tree),
            processor: processor(tree),
            numa: numa(tree),
            ..Self::default()
        };
        topology.read_functions(tree);
        topology.name_members(tree);
        topology.find_importers(tree);
        topology
    }

    /// The function at an address.
    pub fn function(&self, address: PciAddress) -> Option<&Function> {
        self.functions.get(&address)
    }

    /// Habana accelerators, by address.
    pub fn accelerators(&self) -> impl Iterator<Item = &Function> {
        self.functions
            .values()
            .filter(|function| function.is_accelerator())
    }

    /// Functions that hang on a host bridge, by address.
    pub fn below_host(&self, host: usize) -> impl Iterator<Item = &Function> {
        let below = move |function: &&Function| function.parent == Parent::Host(host);
        self.functions.values().filter(below)
    }

    /// Returns the firmware's distance of two NUMA nodes.
    pub fn numa_distance(&self, a: PciAddress, b: PciAddress) -> Option<u32> {
        let node = |address| self.function(address)?.numa_node;
        let (a, b) = (node(a)?, node(b)?);
        // One row may miss nodes without memory; the other may have them.
        let row = |from: u32, to: u32| {
            let place = self.numa.keys().position(|&key| key == to)?;
            self.numa.get(&from)?.get(place).copied()
        };
        row(a, b).or(row(b, a)).or((a == b).then_some(10))
    }

    fn problem(&mut self, text: String) {
        if self.problems.len() < MOST_PROBLEMS {
            self.problems.push(text);
        }
    }

    fn read_functions(&mut self, tree: &dyn Tree) {
        let names = match resolve(tree, DEVICES).and_then(|folder| tree.names(&folder)) {
            Ok(names) => names,
            Err(error) => return self.problem(format!("{DEVICES}: {error}")),
        };
        if names.len() > MOST_FUNCTIONS {
            self.problem(format!(
                "{DEVICES} has {} entries: only {MOST_FUNCTIONS} are looked at",
                names.len()
            ));
        }
        let mut paths = BTreeMap::new();
        for name in names.iter().take(MOST_FUNCTIONS) {
            let Ok(address) = name.parse::<PciAddress>() else {
                self.problem(format!("{DEVICES}/{}: not a PCI address", name.escape_debug()));
                continue;
            };
            let path = resolve(tree, &format!("{DEVICES}/{name}"));
            let folder = path.and_then(|path| Ok((tree.node(&path)?, path)));
            match folder {
                Ok((Node::Folder, path)) if path.ends_with(&format!("/{name}")) => {
                    paths.insert(address, path);
                }
                Ok((_, path)) => {
                    let path = path.escape_debug();
                    self.problem(format!(
                        "{DEVICES}/{name} leads to {path}, which is no folder of that name"
                    ));
                }
                Err(error) => self.problem(format!("{DEVICES}/{name}: {error}")),
            }
        }
        let above: BTreeMap<&PciAddress, &str> = paths
            .iter()
            .map(|(address, path)| (address, path.rsplit_once('/').map_or("", |(above, _)| above)))
            .collect();
        let hosts: BTreeSet<&str> = above
            .values()
            .filter(|above| name_of(above).parse::<PciAddress>().is_err())
            .copied()
            .collect();
        self.host_bridges = hosts.iter().map(|path| host_bridge(path)).collect();
        let hosts: Vec<&str> = hosts.into_iter().collect();
        for (address, path) in &paths {
            let above = above[address];
            let parent = match name_of(above).parse::<PciAddress>() {
                // Only a path that continues its bridge's is believed: so no chain of bridges runs
                // in a circle.
                Ok(bridge) if paths.get(&bridge).map(String::as_str) == Some(above) => Parent::Bridge(bridge),
                Ok(_) => Parent::Missing,
                Err(_) => hosts.binary_search(&above).map_or(Parent::Missing, Parent::Host),
            };
            let function = function(tree, *address, path, parent);
            if function.vendor.is_none() {
                self.problem(format!("{address}: no readable vendor"));
            }
            self.functions.insert(*address, function);
        }
    }

    /// The nearest function above a path: what p2pdma.c `find_parent_pci_dev` finds.
    fn owner(&self, path: &str) -> Option<PciAddress> {
        let mut path = path;
        for _ in 0..DEEPEST {
            let found = name_of(path).parse().ok();
            let known = found.filter(|address| {
                self.function(*address)
                    .is_some_and(|function| function.path == path)
            });
            if known.is_some() {
                return known;
            }
            path = path.rsplit_once('/')?.0;
        }
        None
    }

    fn name_members(&mut self, tree: &dyn Tree) {
        type Names = fn(&mut Function) -> &mut Vec<String>;
        let classes: [(&str, Names); 5] = [
            ("accel", |function| &mut function.accelerators),
            ("habanalabs", |function| &mut function.accelerators),
            ("infiniband", |function| &mut function.rdma),
            ("net", |function| &mut function.nets),
            ("nvme", |function| &mut function.nvme),
        ];
        for (name, names) in classes {
            for (member, path) in class(tree, name, MOST_MEMBERS) {
                let owner = self.owner(&path).and_then(|owner| self.functions.get_mut(&owner));
                if let Some(owner) = owner {
                    names(owner).push(member);
                }
            }
        }
    }

    fn find_importers(&mut self, tree: &dyn Tree) {
        let nics = self.functions.values().filter(|function| function.is_nic());
        let mut importers: Vec<Importer> = nics
            .map(|function| Importer {
                rdma: function.rdma.clone(),
                nets: function.nets.clone(),
                function: Some(function.address),
                software: false,
                is_up: None,
            })
            .take(MOST_MEMBERS)
            .collect();
        let nets: BTreeMap<String, String> = class(tree, "net", MOST_MEMBERS).into_iter().collect();
        for (name, path) in class(tree, "infiniband", MOST_MEMBERS) {
            if self.owner(&path).is_some() {
                continue;
            }
            // rxe and siw use an interface; rxe shows which (rxe_verbs.c:`parent_show`).
            let net = Attributes::of(tree, &path).text("parent");
            let net = net.and_then(|net| printable(&net));
            let below = net
                .as_ref()
                .and_then(|net| nets.get(net))
                .and_then(|path| self.owner(path));
            let nic = importers
                .iter_mut()
                .find(|nic| below.is_some() && nic.function == below);
            if let Some(nic) = nic {
                nic.rdma.push(name);
                nic.software = true;
            } else {
                importers.push(Importer {
                    rdma: vec![name],
                    nets: net.into_iter().collect(),
                    function: below,
                    software: true,
                    is_up: None,
                });
            }
        }
        let devices: BTreeMap<String, String> = class(tree, "infiniband", MOST_MEMBERS).into_iter().collect();
        for importer in &mut importers {
            let paths = importer.rdma.iter().filter_map(|name| devices.get(name));
            let states = paths.flat_map(|path| port_states(tree, path));
            importer.is_up = states.reduce(|one, other| one || other);
        }
        self.importers = importers;
    }
}

/// Whether each port of an RDMA device is ACTIVE (`4: ACTIVE`,
/// drivers/infiniband/core/sysfs.c:state_show).
fn port_states(tree: &dyn Tree, device: &str) -> Vec<bool> {
    let folder = format!("{device}/ports");
    let ports = tree
        .names(&folder)
        .unwrap_or_default()
        .into_iter()
        .take(MOST_PORTS);
    ports
        .filter_map(|port| {
            let folder = format!("{folder}/{}", printable(&port)?);
            Some(Attributes::of(tree, &folder).text("state")?.starts_with("4:"))
        })
        .collect()
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn host_bridge(path: &str) -> HostBridge {
    let name = name_of(path).to_owned();
    let bus = name.strip_prefix("pci").and_then(|place| {
        let (_, bus) = place.split_once(':')?;
        u8::from_str_radix(bus, 16).ok()
    });
    HostBridge {
        // A folder's name, which may be anything: it must not steer a terminal.
        name: name.escape_debug().to_string(),
        bus,
        path: path.to_owned(),
    }
}

fn kernel(tree: &dyn Tree) -> Kernel {
    let release = Attributes::of(tree, "/proc/sys/kernel").text("osrelease");
    let release = release.and_then(|release| printable(&release));
    let release = release.filter(|release| !release.contains('/'));
    let option = kernel_option(tree, release.as_deref(), "CONFIG_PCI_P2PDMA");
    // Without a configuration, look for a function that exists only with the option.
    let function = || has_function(tree, "pci_p2pdma_distance_many");
    Kernel {
        p2pdma: option.map(|option| option.is_set).ok().or_else(function),
        release,
    }
}

/// `cpu:type:x86,ven0002fam0017mod0001:feature:…` (arch/x86/kernel/cpu/match.c,
/// drivers/base/cpu.c).
fn processor(tree: &dyn Tree) -> Option<Processor> {
    let alias = Attributes::of(tree, "/sys/devices/system/cpu").text("modalias")?;
    let Some(rest) = alias.strip_prefix("cpu:type:x86,ven") else {
        return alias.starts_with("cpu:type:").then_some(Processor::Other);
    };
    let hex = |text: Option<&str>| u16::from_str_radix(text?, 16).ok();
    let vendor = hex(rest.get(..4))?;
    let family = hex(rest.get(4..)?.strip_prefix("fam")?.get(..4))?;
    Some(Processor::X86 { vendor, family })
}

fn numa(tree: &dyn Tree) -> BTreeMap<u32, Vec<u32>> {
    let folder = "/sys/devices/system/node";
    // A kernel without NUMA has no such folder.
    let names = tree.names(folder).unwrap_or_default().into_iter();
    names
        .filter_map(|name| {
            let number = name.strip_prefix("node")?.parse().ok()?;
            let text = Attributes::of(tree, &format!("{folder}/{name}")).text("distance")?;
            let row = text.split_whitespace().map(|word| word.parse().ok());
            Some((number, row.collect::<Option<Vec<u32>>>()?))
        })
        .take(MOST_MEMBERS)
        .collect()
}

fn function(tree: &dyn Tree, address: PciAddress, path: &str, parent: Parent) -> Function {
    let attributes = Attributes::of(tree, path);
    let number = |name| attributes.hex(name, 0xffff).map(|value| value as u16);
    let group = |number| {
        let kind = Attributes::of(tree, &format!("/sys/kernel/iommu_groups/{number}")).text("type");
        let kind = kind.and_then(|kind| printable(&kind));
        IommuGroup { number, kind }
    };
    let number_of_group = attributes
        .link_name("iommu_group")
        .and_then(|name| name.parse().ok());
    Function {
        address,
        path: path.to_owned(),
        parent,
        vendor: number("vendor"),
        device: number("device"),
        class: attributes.hex("class", 0xff_ffff),
        driver: attributes.link_name("driver"),
        numa_node: attributes.decimal("numa_node"),
        iommu: number_of_group.map(group),
        config: config(tree, path),
        link: Link {
            current: speed(&attributes, "current_link_speed", "current_link_width"),
            max: speed(&attributes, "max_link_speed", "max_link_width"),
        },
        bars: bars(&attributes),
        physical: attributes.link_name("physfn").and_then(|name| name.parse().ok()),
        accelerators: Vec::new(),
        rdma: Vec::new(),
        nets: Vec::new(),
        nvme: Vec::new(),
    }
}

fn config(tree: &dyn Tree, folder: &str) -> Config {
    let path = format!("{folder}/config");
    let size = match tree.node(&path) {
        Ok(Node::File(size)) => size,
        Ok(_) => return Config::unread("config is no plain file"),
        Err(error) => return Config::unread(format!("config: {error}")),
    };
    match tree.read(&path, EXTENDED) {
        Ok(bytes) => Config::parse(&bytes, size),
        Err(error) => Config::unread(format!("config: {error}")),
    }
}

/// Parses `16.0 GT/s PCIe` and `16`. A link that is down has `Unknown` and `0` instead.
fn speed(attributes: &Attributes<'_>, speed: &str, width: &str) -> Option<Speed> {
    let text = attributes.text(speed)?;
    let (number, _) = text.split_once(" GT/s")?;
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let whole: u32 = whole.parse().ok().filter(|&whole| whole < 10_000)?;
    let tenths: u32 = tenths.parse().ok().filter(|&tenths| tenths < 10)?;
    let lanes = attributes
        .decimal(width)
        .filter(|lanes| (1..=64).contains(lanes))?;
    Some(Speed {
        megatransfers: whole * 1000 + tenths * 100,
        lanes,
    })
}

/// Lines of `resource`: start, end and flags (include/linux/ioport.h).
fn bars(attributes: &Attributes<'_>) -> Vec<Bar> {
    // A function without a readable `resource` has no known BARs.
    let text = attributes.text("resource").unwrap_or_default();
    let lines = text.lines().take(6).enumerate();
    lines
        .filter_map(|(index, line)| {
            let words = line.split_whitespace();
            let mut words = words.map(|word| hexadecimal(word.strip_prefix("0x")?));
            let (start, end, flags) = (words.next()??, words.next()??, words.next()??);
            (flags & 0x300 != 0 && end > start).then(|| Bar {
                index: index as u8,
                start,
                size: (end - start).wrapping_add(1),
                io: flags & 0x100 != 0,
                prefetchable: flags & 0x2000 != 0,
            })
        })
        .collect()
}

impl Function {
    /// Whether its configuration space could be read as far as ACS stands.
    pub fn acs_read(&self) -> bool {
        !matches!(self.config.acs, Acs::Unread(_))
    }
}
