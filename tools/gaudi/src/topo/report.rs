//! The document of `gaudi topo --json`.

use gaudi_dmabuf::reach::{
    Acs, Bar, Function, Importer, Link, Parent, PortType, Processor, Reach, Refusal, Speed, Topology, Via,
};
use gaudi_seam::PciAddress;
use serde::Serialize;

use super::Picture;

#[derive(Serialize)]
pub(super) struct Report<'a> {
    /// Nothing for this machine.
    source: Option<&'a str>,
    /// Which kernel's rule is computed.
    rule: &'static str,
    kernel_release: Option<&'a str>,
    /// Nothing where not told; then the answers are those of a kernel that has it.
    kernel_p2pdma: Option<bool>,
    processor: Option<Cpu>,
    host_bridges: Vec<Host<'a>>,
    functions: Vec<Row<'a>>,
    nics: Vec<Nic<'a>>,
    reach: Vec<Answer>,
    best: Vec<Best>,
    problems: &'a [String],
}

#[derive(Serialize)]
struct Cpu {
    vendor: &'static str,
    family: Option<u16>,
}

#[derive(Serialize)]
struct Host<'a> {
    name: &'a str,
    /// The function by which the kernel knows it.
    first_function: Option<String>,
    /// Whether the kernel trusts it with a pair below it; nothing where what decides was not read.
    trusted: Option<bool>,
}

#[derive(Serialize)]
struct Row<'a> {
    address: String,
    kind: &'static str,
    /// The bridge above, else the host bridge; nothing where the tree has a hole.
    parent: Option<String>,
    vendor_id: Option<String>,
    device_id: Option<String>,
    class: Option<String>,
    driver: Option<&'a str>,
    numa_node: Option<u32>,
    iommu_group: Option<u32>,
    iommu_type: Option<&'a str>,
    acs: Services<'a>,
    link_speed_mtps: Option<u32>,
    link_width: Option<u32>,
    link_max_speed_mtps: Option<u32>,
    link_max_width: Option<u32>,
    bars: Vec<Register>,
    physical_function: Option<String>,
    accelerators: &'a [String],
    rdma: &'a [String],
    nets: &'a [String],
    nvme: &'a [String],
}

#[derive(Serialize)]
struct Services<'a> {
    state: &'static str,
    capability: Option<String>,
    control: Option<String>,
    redirects: Option<bool>,
    why: Option<&'a str>,
}

#[derive(Serialize)]
struct Register {
    index: u8,
    start: String,
    size_bytes: u64,
    io: bool,
    prefetchable: bool,
}

#[derive(Serialize)]
struct Nic<'a> {
    name: String,
    function: Option<String>,
    rdma: &'a [String],
    nets: &'a [String],
    software: bool,
    /// Whether one of its ports is active; `None` if unknown.
    port_active: Option<bool>,
}

#[derive(Serialize)]
struct Answer {
    exporter: String,
    nic: String,
    /// `reachable`, `refused` or `unknown`.
    answer: &'static str,
    via: Option<&'static str>,
    /// The switch's or root port's lowest bridge above both.
    bridge: Option<String>,
    distance: Option<u32>,
    numa_distance: Option<u32>,
    /// Ports whose ACS sends packets up to the root complex.
    redirects: Vec<String>,
    /// What decides and could not be read.
    unread: Vec<String>,
    /// `no_p2pdma`, `not_pci` or `host_bridge`.
    refusal: Option<&'static str>,
    reason: Option<String>,
    mend: Option<String>,
    caveat: Option<String>,
}

#[derive(Serialize)]
struct Best {
    exporter: String,
    /// Nothing where no NIC with an RDMA device reaches it.
    nic: Option<String>,
}

impl<'a> Report<'a> {
    pub(super) fn of(picture: &'a Picture) -> Self {
        let topology = &picture.topology;
        let pairs = || {
            let pair = |&exporter| topology.importers.iter().map(move |nic| (exporter, nic));
            picture.exporters.iter().flat_map(pair)
        };
        Self {
            source: picture.source.as_deref(),
            rule: "Linux 7.3, drivers/pci/p2pdma.c",
            kernel_release: topology.kernel.release.as_deref(),
            kernel_p2pdma: topology.kernel.p2pdma,
            processor: topology.processor.map(cpu),
            host_bridges: topology
                .host_bridges
                .iter()
                .enumerate()
                .map(|(at, bridge)| Host {
                    name: &bridge.name,
                    first_function: topology
                        .root_device(at)
                        .ok()
                        .and_then(|root| root.device)
                        .map(|(address, ..)| address.to_string()),
                    trusted: topology.trusts(at).ok(),
                })
                .collect(),
            functions: topology
                .functions
                .values()
                .map(|function| row(topology, function))
                .collect(),
            nics: topology.importers.iter().map(nic).collect(),
            reach: pairs()
                .map(|(exporter, nic)| answer(topology, exporter, nic))
                .collect(),
            best: picture
                .exporters
                .iter()
                .map(|&exporter| Best {
                    exporter: exporter.to_string(),
                    nic: best(topology, exporter).map(Importer::name),
                })
                .collect(),
            problems: &topology.problems,
        }
    }
}

/// The NIC that serves a card best.
pub(super) fn best(topology: &Topology, exporter: PciAddress) -> Option<&Importer> {
    let ranking = topology.ranking(exporter);
    let first = ranking
        .first()
        .filter(|choice| !choice.importer.rdma.is_empty())?;
    Some(first.importer)
}

/// What a function is, in one word.
pub(super) fn kind(function: &Function) -> &'static str {
    match function.port() {
        Some(PortType::RootPort) => return "root port",
        Some(PortType::Upstream) => return "switch up",
        Some(PortType::Downstream) => return "switch down",
        _ => {}
    }
    if function.is_accelerator() {
        "accelerator"
    } else if function.is_nic() {
        "nic"
    } else if !function.nvme.is_empty() {
        "nvme"
    } else if function.is_bridge() {
        "bridge"
    } else {
        "other"
    }
}

fn cpu(processor: Processor) -> Cpu {
    match processor {
        Processor::X86 { vendor, family } => Cpu {
            vendor: match vendor {
                0 => "intel",
                2 => "amd",
                9 => "hygon",
                _ => "other",
            },
            family: Some(family),
        },
        Processor::Other => Cpu {
            vendor: "not_x86",
            family: None,
        },
    }
}

fn row<'a>(topology: &'a Topology, function: &'a Function) -> Row<'a> {
    let hex = |value: u16| format!("{value:#06x}");
    let Link { current, max } = function.link;
    let (speed, lanes) = (|link: Speed| link.megatransfers, |link: Speed| link.lanes);
    Row {
        address: function.address.to_string(),
        kind: kind(function),
        parent: match function.parent {
            Parent::Host(host) => Some(topology.host_bridges[host].name.clone()),
            Parent::Bridge(bridge) => Some(bridge.to_string()),
            Parent::Missing => None,
        },
        vendor_id: function.vendor.map(hex),
        device_id: function.device.map(hex),
        class: function.class.map(|class| format!("{class:#08x}")),
        driver: function.driver.as_deref(),
        numa_node: function.numa_node,
        iommu_group: function.iommu.as_ref().map(|group| group.number),
        iommu_type: function.iommu.as_ref().and_then(|group| group.kind.as_deref()),
        acs: services(&function.config.acs),
        link_speed_mtps: current.map(speed),
        link_width: current.map(lanes),
        link_max_speed_mtps: max.map(speed),
        link_max_width: max.map(lanes),
        bars: function.bars.iter().map(register).collect(),
        physical_function: function.physical.map(|physical| physical.to_string()),
        accelerators: &function.accelerators,
        rdma: &function.rdma,
        nets: &function.nets,
        nvme: &function.nvme,
    }
}

fn services(acs: &Acs) -> Services<'_> {
    let hex = |value: u16| Some(format!("{value:#06x}"));
    let (state, capability, control, why) = match acs {
        Acs::Absent => ("absent", None, None, None),
        Acs::Present { capability, control } => ("present", hex(*capability), hex(*control), None),
        Acs::Unread(why) => ("unread", None, None, Some(why.as_str())),
    };
    Services {
        state,
        capability,
        control,
        redirects: acs.redirects(),
        why,
    }
}

fn register(bar: &Bar) -> Register {
    Register {
        index: bar.index,
        start: format!("{:#x}", bar.start),
        size_bytes: bar.size,
        io: bar.io,
        prefetchable: bar.prefetchable,
    }
}

fn nic(importer: &Importer) -> Nic<'_> {
    Nic {
        name: importer.name(),
        function: importer.function.map(|function| function.to_string()),
        rdma: &importer.rdma,
        nets: &importer.nets,
        software: importer.software,
        port_active: importer.is_up,
    }
}

fn answer(topology: &Topology, exporter: PciAddress, importer: &Importer) -> Answer {
    let texts = |ports: &[PciAddress]| ports.iter().map(PciAddress::to_string).collect::<Vec<_>>();
    let mut answer = Answer {
        exporter: exporter.to_string(),
        nic: importer.name(),
        answer: "reachable",
        via: None,
        bridge: None,
        distance: None,
        numa_distance: importer
            .function
            .and_then(|function| topology.numa_distance(exporter, function)),
        redirects: Vec::new(),
        unread: Vec::new(),
        refusal: None,
        reason: None,
        mend: None,
        caveat: None,
    };
    match topology.reach(exporter, importer) {
        Reach::Reachable(route) => {
            answer.distance = Some(route.distance);
            answer.caveat = topology.caveat(&route, importer);
            answer.via = Some(match &route.via {
                Via::SameFunction => "same_function",
                Via::SameSwitch(bridge) => {
                    answer.bridge = Some(bridge.to_string());
                    "same_switch"
                }
                Via::RootPort(port) => {
                    answer.bridge = Some(port.to_string());
                    "root_port"
                }
                Via::WhitelistedHostBridge { redirects, .. } => {
                    answer.redirects = texts(redirects);
                    "whitelisted_host_bridge"
                }
                Via::Undetermined { bridge, unread } => {
                    answer.bridge = Some(bridge.to_string());
                    answer.unread = texts(unread);
                    "undetermined"
                }
            });
        }
        Reach::Refused(refusal) => {
            answer.answer = "refused";
            answer.reason = Some(refusal.to_string());
            answer.mend = Some(refusal.mend());
            answer.refusal = Some(match &refusal {
                Refusal::NoP2pdma => "no_p2pdma",
                Refusal::NotPci => "not_pci",
                Refusal::HostBridge { redirects, .. } => {
                    answer.redirects = texts(redirects);
                    "host_bridge"
                }
            });
        }
        Reach::Unknown(what) => {
            answer.answer = "unknown";
            answer.unread = what;
        }
    }
    answer
}
