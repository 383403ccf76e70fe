//! The kernel's answer for a pair, computed: drivers/pci/p2pdma.c of Linux 7.3, and a ranking over
//! its answers.

use std::fmt;

use gaudi_seam::PciAddress;

use super::config::PortType;
use super::topology::{DEEPEST, Function, Importer, Parent, Processor, Topology};

/// Vendor AMD in the CPU's modalias (arch/x86/include/asm/processor.h `X86_VENDOR_AMD`).
const AMD: u16 = 2;
/// Zen (p2pdma.c `cpu_supports_p2pdma`).
const ZEN: u16 = 0x17;
const INTEL: u16 = 0x8086;
const GOOGLE: u16 = 0x1ae0;
const NVIDIA: u16 = 0x10de;

/// A row of `pci_p2pdma_whitelist`: vendor, device (nothing: any), and whether both must be below
/// one host bridge (`REQ_SAME_HOST_BRIDGE`).
type Row = (u16, Option<u16>, bool);

/// p2pdma.c `pci_p2pdma_whitelist`; names of devices are those of include/linux/pci_ids.h.
const HOST_BRIDGES: &[Row] = &[
    // Intel Xeon E5, Core i7
    (INTEL, Some(0x3c00), true),
    (INTEL, Some(0x3c01), true),
    // Intel Xeon E7 v3, Xeon E5 v3, Core i7
    (INTEL, Some(0x2f00), true),
    (INTEL, Some(0x2f01), true),
    // Intel Skylake-E
    (INTEL, Some(0x2030), false),
    (INTEL, Some(0x2031), false),
    (INTEL, Some(0x2032), false),
    (INTEL, Some(0x2033), false),
    (INTEL, Some(0x2020), false),
    (INTEL, Some(0x09a2), false),
    (INTEL, Some(0x0b25), false), // DSA_SPR0
    (INTEL, Some(0x0cfe), false), // IAX_SPR0
    (INTEL, Some(0x11fb), false), // DSA_GNRD
    (INTEL, Some(0x1212), false), // DSA_DMR
    (INTEL, Some(0x1216), false), // IAA_DMR
    (INTEL, Some(0x4940), false), // QAT_4XXX
    (INTEL, Some(0x4942), false), // QAT_401XX
    (INTEL, Some(0x4944), false), // QAT_402XX
    (INTEL, Some(0x4946), false), // QAT_420XX
    (INTEL, Some(0x4948), false), // QAT_6XXX
    (GOOGLE, None, false),
    (NVIDIA, Some(0x2f95), false),
    (NVIDIA, Some(0x2f96), false),
    (NVIDIA, Some(0x2f97), false),
    (NVIDIA, Some(0x2f98), false),
];

/// By which way packets go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Via {
    /// Both are one function.
    SameFunction,
    /// Inside a switch, or another bridge that is no root port, below the bridge named.
    SameSwitch(PciAddress),
    /// Through the root port named, which both are below: two functions of one card.
    RootPort(PciAddress),
    /// Up to the root complex, whose host bridge or processor the kernel trusts.
    WhitelistedHostBridge {
        /// Why it is trusted.
        trusted: Why,
        /// Ports below a common bridge whose ACS sends packets up. None: there is no common bridge.
        redirects: Vec<PciAddress>,
    },
    /// Allowed either way; ACS of these ports, which could not be read, decides between the switch
    /// and the root complex.
    Undetermined {
        /// The lowest bridge above both.
        bridge: PciAddress,
        /// Ports that were not read.
        unread: Vec<PciAddress>,
    },
}

/// Why the root complex is trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// An AMD processor of family 0x17 (Zen) or later.
    Processor,
    /// The first function of each host bridge is in the kernel's table.
    Table(Vec<RootDevice>),
}

/// The function by which the kernel knows a host bridge (p2pdma.c `pci_host_bridge_dev`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootDevice {
    /// The host bridge, as `pci0000:00`.
    pub host_bridge: String,
    /// The first function on its root bus; nothing where that is neither at 00.0 nor a root port.
    pub device: Option<(PciAddress, u16, u16)>,
}

impl fmt::Display for RootDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.device {
            Some((_, vendor, device)) => write!(f, "{} ({vendor:04x}:{device:04x})", self.host_bridge),
            None => write!(
                f,
                "{} (first function neither at 00.0 nor a root port)",
                self.host_bridge
            ),
        }
    }
}

/// A pair that the kernel allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// By which way.
    pub via: Via,
    /// Ports between the two, as `pci_p2pdma_distance` counts them: 0 the same function, 2 one
    /// card, 4 one switch.
    pub distance: u32,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match &self.via {
            Via::SameFunction => "same function".to_owned(),
            Via::SameSwitch(bridge) => format!("switch {bridge}"),
            Via::RootPort(port) => format!("root port {port}"),
            Via::WhitelistedHostBridge { .. } => "host bridge".to_owned(),
            Via::Undetermined { bridge, .. } => format!("switch {bridge} or host bridge (ACS not read)"),
        };
        write!(f, "{way}, distance {}", self.distance)
    }
}

/// Why the kernel refuses a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The kernel was built without `CONFIG_PCI_P2PDMA`.
    NoP2pdma,
    /// The device that asks has no PCI function above it.
    NotPci,
    /// Packets would pass a root complex that is not trusted: no bridge is above both, or ports
    /// below it redirect.
    HostBridge {
        /// The host bridges of the two; one where they share it.
        roots: Vec<RootDevice>,
        /// Ports below a common bridge whose ACS sends packets up. None: there is no common bridge.
        redirects: Vec<PciAddress>,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoP2pdma => f.write_str("the kernel was built without CONFIG_PCI_P2PDMA"),
            Self::NotPci => f.write_str("not a PCI device"),
            Self::HostBridge { roots, redirects } => {
                if redirects.is_empty() {
                    f.write_str("no common upstream bridge")?;
                } else {
                    write!(
                        f,
                        "ACS of {} sends packets up to the root complex",
                        list(redirects)
                    )?;
                }
                write!(f, ", and the kernel does not trust host bridge {}", list(roots))
            }
        }
    }
}

impl Refusal {
    /// Returns the change that removes the cause.
    pub fn remedy(&self) -> String {
        match self {
            Self::NoP2pdma => "boot a kernel with CONFIG_PCI_P2PDMA=y".to_owned(),
            Self::NotPci => "use an RDMA device that stands on a PCI function".to_owned(),
            Self::HostBridge { redirects, .. } if redirects.is_empty() => {
                "put card and NIC below one PCIe switch, or into a machine whose root complex the kernel trusts".to_owned()
            }
            Self::HostBridge { redirects, .. } => {
                let ports: Vec<String> = redirects.iter().map(PciAddress::to_string).collect();
                let ports = ports.join(";");
                // The kernel's own advice, with the consequence that its message omits.
                format!(
                    "boot with pci=disable_acs_redir={ports} (the devices below then share an IOMMU group and are not isolated)"
                )
            }
        }
    }
}

/// The kernel's answer for a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reach {
    /// It allows the pair.
    Reachable(Route),
    /// It refuses the pair, and a registration of the memory fails with `EPERM`.
    Refused(Refusal),
    /// What could not be read decides.
    Unknown(Vec<String>),
}

impl Reach {
    /// The way, where there is one.
    pub fn route(&self) -> Option<&Route> {
        match self {
            Self::Reachable(route) => Some(route),
            _ => None,
        }
    }
}

/// A NIC that reaches an accelerator.
#[derive(Debug, Clone)]
pub struct Choice<'a> {
    /// The NIC.
    pub importer: &'a Importer,
    /// The way to it.
    pub route: Route,
    /// The distance of their NUMA nodes.
    pub numa_distance: Option<u32>,
}

/// Whether the kernel trusts the root complex for a pair.
enum Trust {
    Yes(Why),
    No(Vec<RootDevice>),
    Unread(Vec<String>),
}

impl Topology {
    /// The kernel's answer for memory of `exporter` and a NIC.
    ///
    /// Where it is not known whether the kernel has `CONFIG_PCI_P2PDMA`, the answer is that of one
    /// that has.
    pub fn reach(&self, exporter: PciAddress, importer: &Importer) -> Reach {
        if self.kernel.p2pdma == Some(false) {
            return Reach::Refused(Refusal::NoP2pdma);
        }
        match importer.function {
            Some(client) => self.between(exporter, client),
            None => Reach::Refused(Refusal::NotPci),
        }
    }

    /// The answer of a kernel with `CONFIG_PCI_P2PDMA` for two functions (p2pdma.c
    /// `calc_map_type_and_dist`).
    pub fn between(&self, provider: PciAddress, client: PciAddress) -> Reach {
        let (a, b) = match (self.upward(provider), self.upward(client)) {
            (Ok(a), Ok(b)) => (a, b),
            (Err(why), Ok(_)) | (Ok(_), Err(why)) => return Reach::Unknown(vec![why]),
            (Err(one), Err(other)) => return Reach::Unknown(vec![one, other]),
        };
        let through_root = |redirects, distance: usize| match self.trust(provider, client) {
            Trust::Yes(trusted) => Reach::Reachable(Route {
                via: Via::WhitelistedHostBridge { trusted, redirects },
                distance: distance as u32,
            }),
            Trust::No(roots) => Reach::Refused(Refusal::HostBridge { roots, redirects }),
            Trust::Unread(what) => Reach::Unknown(what),
        };
        let shared = a.iter().enumerate().find_map(|(up, function)| {
            Some((up, b.iter().position(|other| other.address == function.address)?))
        });
        let Some((up_a, up_b)) = shared else {
            return through_root(Vec::new(), a.len() + b.len());
        };
        let distance = (up_a + up_b) as u32;
        // The provider's side counts the common bridge itself, the client's side does not: as in
        // the kernel.
        let path: Vec<&Function> = a[..=up_a].iter().chain(&b[..up_b]).copied().collect();
        let with = |is: Option<bool>| {
            let ports = path.iter().filter(move |port| port.config.acs.redirects() == is);
            ports.map(|port| port.address).collect::<Vec<PciAddress>>()
        };
        let (redirects, unread) = (with(Some(true)), with(None));
        let bridge = a[up_a];
        let via = if !redirects.is_empty() {
            return through_root(redirects, up_a + up_b);
        } else if !unread.is_empty() {
            let Trust::Yes(_) = self.trust(provider, client) else {
                return Reach::Unknown(vec![format!("ACS of {}", list(&unread))]);
            };
            Via::Undetermined {
                bridge: bridge.address,
                unread,
            }
        } else if distance == 0 {
            Via::SameFunction
        } else if bridge.port() == Some(PortType::RootPort) {
            Via::RootPort(bridge.address)
        } else {
            Via::SameSwitch(bridge.address)
        };
        Reach::Reachable(Route { via, distance })
    }

    /// Returns the NICs that reach an accelerator, best first. The order is: with an RDMA device;
    /// with an active port; inside a switch (fewest ports between), then through the root complex
    /// (smallest NUMA distance); widest link; order in the tree.
    pub fn ranking(&self, exporter: PciAddress) -> Vec<Choice<'_>> {
        let mut choices: Vec<Choice<'_>> = self
            .importers
            .iter()
            .filter_map(|importer| {
                Some(Choice {
                    importer,
                    route: self.reach(exporter, importer).route()?.clone(),
                    numa_distance: self.numa_distance(exporter, importer.function?),
                })
            })
            .collect();
        choices.sort_by_key(|choice| {
            let class = match choice.route.via {
                Via::SameFunction | Via::SameSwitch(_) | Via::RootPort(_) => 0,
                Via::Undetermined { .. } => 1,
                Via::WhitelistedHostBridge { .. } => 2,
            };
            // An unknown distance ranks last.
            let numa = choice.numa_distance.unwrap_or(u32::MAX);
            let distance = choice.route.distance;
            let nearness = if class == 2 {
                (numa, distance)
            } else {
                (distance, numa)
            };
            let function = choice
                .importer
                .function
                .and_then(|address| self.function(address));
            let weight = function
                .and_then(|function| function.link.current)
                .map_or(0, |speed| speed.weight());
            // A plain interface cannot register memory, however near it is.
            let plain = choice.importer.rdma.is_empty();
            // Without an active port it moves nothing.
            let down = choice.importer.is_up == Some(false);
            (
                plain,
                down,
                class,
                nearness,
                std::cmp::Reverse(weight),
                choice.importer.function,
            )
        });
        choices
    }

    /// Returns a note about a pair that the kernel allows, if something else prevents the short
    /// path.
    pub fn caveat(&self, route: &Route, importer: &Importer) -> Option<String> {
        let direct = matches!(
            route.via,
            Via::SameSwitch(_) | Via::RootPort(_) | Via::Undetermined { .. }
        );
        let function = self.function(importer.function?)?;
        let translates = function.iommu.as_ref().is_some_and(|group| group.translates());
        // habanalabs maps with dma_map_resource whatever the map type is (memory.c `set_dma_sg`):
        // the NIC gets an IOMMU address, which only the root complex can turn into the card's.
        (direct && translates).then(|| {
            "the IOMMU translates the NIC's addresses, so packets go up to the root complex all the same; iommu=pt keeps them in \
             the switch"
                .to_owned()
        })
    }

    /// A function and all bridges above it (linux/pci.h `pci_upstream_bridge`: a virtual function
    /// goes by its physical one).
    fn upward(&self, address: PciAddress) -> Result<Vec<&Function>, String> {
        let mut chain: Vec<&Function> = Vec::new();
        let mut next = Some(address);
        while let Some(address) = next {
            let function = self
                .function(address)
                .ok_or_else(|| format!("{address} is not in the tree"))?;
            if chain.len() >= DEEPEST {
                return Err(format!("more than {DEEPEST} bridges above {}", chain[0].address));
            }
            chain.push(function);
            next = match self.hangs_on(function)? {
                Parent::Bridge(bridge) => Some(bridge),
                _ => None,
            };
        }
        Ok(chain)
    }

    fn hangs_on(&self, function: &Function) -> Result<Parent, String> {
        let place = match function.physical {
            Some(physical) => self.function(physical).ok_or_else(|| {
                format!(
                    "{physical}, the physical function of {}, is not in the tree",
                    function.address
                )
            })?,
            None => function,
        };
        match place.parent {
            Parent::Missing => Err(format!("the bridge above {} is not in the tree", place.address)),
            parent => Ok(parent),
        }
    }

    /// The host bridge that a function is below.
    fn host_of(&self, address: PciAddress) -> Result<usize, String> {
        let chain = self.upward(address)?;
        let top = chain
            .last()
            .ok_or_else(|| format!("{address} is not in the tree"))?;
        match self.hangs_on(top)? {
            Parent::Host(host) => Ok(host),
            _ => Err(format!("the host bridge of {address} is not in the tree")),
        }
    }

    /// p2pdma.c `cpu_supports_p2pdma` and `host_bridge_whitelist`.
    fn trust(&self, a: PciAddress, b: PciAddress) -> Trust {
        if self.processor.is_some_and(is_zen) {
            return Trust::Yes(Why::Processor);
        }
        match (self.host_of(a), self.host_of(b)) {
            (Ok(a), Ok(b)) if a == b => self.trust_hosts(&[a]),
            (Ok(a), Ok(b)) => self.trust_hosts(&[a, b]),
            (Err(why), _) | (_, Err(why)) => Trust::Unread(vec![why]),
        }
    }

    fn trust_hosts(&self, hosts: &[usize]) -> Trust {
        if self.processor.is_some_and(is_zen) {
            return Trust::Yes(Why::Processor);
        }
        let mut roots = Vec::new();
        let mut trusted = true;
        let mut unread = Vec::new();
        for &host in hosts {
            match self.root_device(host) {
                Ok(root) => {
                    trusted &= root
                        .device
                        .is_some_and(|(_, vendor, device)| is_listed(vendor, device, hosts.len() == 1));
                    roots.push(root);
                }
                Err(why) => unread.push(why),
            }
        }
        if trusted && unread.is_empty() {
            return Trust::Yes(Why::Table(roots));
        }
        // An AMD processor would be trusted whatever its host bridges are.
        if self.processor.is_none() {
            unread.push("the processor (/sys/devices/system/cpu/modalias)".to_owned());
        } else if !trusted {
            return Trust::No(roots);
        }
        Trust::Unread(unread)
    }

    /// Whether the kernel trusts the root complex below one host bridge, for a pair of which both
    /// are below it.
    ///
    /// # Errors
    /// What could not be read.
    pub fn trusts(&self, host: usize) -> Result<bool, String> {
        match self.trust_hosts(&[host]) {
            Trust::Yes(_) => Ok(true),
            Trust::No(_) => Ok(false),
            Trust::Unread(what) => Err(what.join(", ")),
        }
    }

    /// The function by which the kernel knows a host bridge (p2pdma.c `pci_host_bridge_dev`). The
    /// kernel takes the first function that it found on the root bus; that is the lowest, unless it
    /// was plugged in later.
    ///
    /// # Errors
    /// What could not be read.
    pub fn root_device(&self, host: usize) -> Result<RootDevice, String> {
        let bridge = self
            .host_bridges
            .get(host)
            .ok_or_else(|| format!("there is no host bridge {host}"))?;
        let on_root_bus = |function: &&Function| {
            function.physical.is_none() && bridge.bus.is_none_or(|bus| function.address.bus == bus)
        };
        let host_bridge = bridge.name.clone();
        let Some(first) = self.below_host(host).find(on_root_bus) else {
            return Ok(RootDevice {
                host_bridge,
                device: None,
            });
        };
        let place = (first.address.device, first.address.function);
        let unread = |what: &str| format!("{what} of {}, the first function of {host_bridge}", first.address);
        let named = match first.port() {
            _ if place == (0, 0) => true,
            Some(port) => port == PortType::RootPort,
            None if first.config.express == Some(false) || first.acs_read() => false,
            None => return Err(unread("port type")),
        };
        let (vendor, device) = first
            .vendor
            .zip(first.device)
            .ok_or_else(|| unread("vendor and device"))?;
        Ok(RootDevice {
            device: named.then_some((first.address, vendor, device)),
            host_bridge,
        })
    }
}

/// p2pdma.c `cpu_supports_p2pdma`.
fn is_zen(processor: Processor) -> bool {
    matches!(processor, Processor::X86 { vendor: AMD, family } if family >= ZEN)
}

fn is_listed(vendor: u16, device: u16, same_host_bridge: bool) -> bool {
    let row = HOST_BRIDGES
        .iter()
        .find(|(v, d, _)| *v == vendor && d.is_none_or(|d| d == device));
    row.is_some_and(|&(_, _, one)| same_host_bridge || !one)
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(T::to_string).collect();
    items.join(", ")
}
