//! The document of `gaudi topo --json`.

use gaudi::PciAddress;
use gaudi::dmabuf::reach::{
    Acs, Function, Importer, Link, Parent, PortType, Processor, Reach, Refusal, Speed, Topology, Via,
};
use serde::Serialize;

use super::Picture;
use crate::report::object;

pub(super) fn document(picture: &Picture) -> impl Serialize + '_ {
    let topology = &picture.topology;
    let exporters = picture.exporters.iter();
    let pairs = exporters.clone().flat_map(|&exporter| {
        let nics = topology.importers.iter();
        nics.map(move |nic| answer(topology, exporter, nic))
    });
    object! {
        // `None` for this machine.
        source: picture.source.as_deref(),
        // Which kernel's rule is computed.
        rule: "Linux 7.3, drivers/pci/p2pdma.c",
        kernel_release: topology.kernel.release.as_deref(),
        // `None` if it is unknown; then the answers are those of a kernel that has it.
        kernel_p2pdma: topology.kernel.p2pdma,
        processor: topology.processor.map(|processor| object! {
            vendor: vendor(processor).0,
            family: match processor {
                Processor::X86 { family, .. } => Some(family),
                Processor::Other => None,
            },
        }),
        host_bridges: topology.host_bridges.iter().enumerate().map(|(at, bridge)| {
            let root = topology.root_device(at).ok().and_then(|root| root.device);
            object! {
                name: &bridge.name,
                // The function by which the kernel identifies the bridge.
                first_function: root.map(|(address, ..)| address.to_string()),
                // Whether the kernel trusts it with a pair below it; `None` if what decides was not
                // read.
                trusted: topology.trusts(at).ok(),
            }
        }).collect::<Vec<_>>(),
        functions: topology.functions.values().map(|function| row(topology, function)).collect::<Vec<_>>(),
        nics: topology.importers.iter().map(|nic| object! {
            name: nic.name(),
            function: nic.function.map(|function| function.to_string()),
            rdma: &nic.rdma,
            nets: &nic.nets,
            software: nic.software,
            // Whether one of its ports is active; `None` if unknown.
            port_active: nic.is_up,
        }).collect::<Vec<_>>(),
        reach: pairs.collect::<Vec<_>>(),
        best: exporters.map(|&exporter| object! {
            exporter: exporter.to_string(),
            // `None` if no NIC with an RDMA device reaches it.
            nic: best(topology, exporter).map(Importer::name),
        }).collect::<Vec<_>>(),
        problems: &topology.problems,
    }
}

/// Returns a processor's vendor in documents and in texts.
pub(super) fn vendor(processor: Processor) -> (&'static str, &'static str) {
    match processor {
        Processor::X86 { vendor: 0, .. } => ("intel", "Intel"),
        Processor::X86 { vendor: 2, .. } => ("amd", "AMD"),
        Processor::X86 { vendor: 9, .. } => ("hygon", "Hygon"),
        Processor::X86 { .. } => ("other", "x86"),
        Processor::Other => ("not_x86", "not x86"),
    }
}

/// Returns the NIC that serves a card best.
pub(super) fn best(topology: &Topology, exporter: PciAddress) -> Option<&Importer> {
    let ranking = topology.ranking(exporter);
    let first = ranking
        .first()
        .filter(|choice| !choice.importer.rdma.is_empty())?;
    Some(first.importer)
}

/// Returns the kind of a function in one word.
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

fn row<'a>(topology: &'a Topology, function: &'a Function) -> impl Serialize + 'a {
    let hex = |value: u16| format!("{value:#06x}");
    let Link { current, max } = function.link;
    let (speed, lanes) = (|link: Speed| link.megatransfers, |link: Speed| link.lanes);
    let acs = &function.config.acs;
    let (state, capability, control, why) = match acs {
        Acs::Absent => ("absent", None, None, None),
        Acs::Present { capability, control } => ("present", Some(*capability), Some(*control), None),
        Acs::Unread(why) => ("unread", None, None, Some(why)),
    };
    object! {
        address: function.address.to_string(),
        kind: kind(function),
        // The bridge above, otherwise the host bridge; `None` if the tree has a hole.
        parent: match function.parent {
            Parent::Host(host) => Some(topology.host_bridges[host].name.clone()),
            Parent::Bridge(bridge) => Some(bridge.to_string()),
            Parent::Missing => None,
        },
        vendor_id: function.vendor.map(hex),
        device_id: function.device.map(hex),
        class: function.class.map(|class| format!("{class:#08x}")),
        driver: &function.driver,
        numa_node: function.numa_node,
        iommu_group: function.iommu.as_ref().map(|group| group.number),
        iommu_type: function.iommu.as_ref().map(|group| &group.kind),
        acs: object! {
            state: state,
            capability: capability.map(hex),
            control: control.map(hex),
            redirects: acs.redirects(),
            why: why,
        },
        link_speed_mtps: current.map(speed),
        link_width: current.map(lanes),
        link_max_speed_mtps: max.map(speed),
        link_max_width: max.map(lanes),
        bars: function.bars.iter().map(|bar| object! {
            index: bar.index,
            start: format!("{:#x}", bar.start),
            size_bytes: bar.size,
            io: bar.io,
            prefetchable: bar.prefetchable,
        }).collect::<Vec<_>>(),
        physical_function: function.physical.map(|physical| physical.to_string()),
        accelerators: &function.accelerators,
        rdma: &function.rdma,
        nets: &function.nets,
        nvme: &function.nvme,
    }
}

/// Whether a NIC reaches a card's memory, on which way, or why it does not.
fn answer(topology: &Topology, exporter: PciAddress, importer: &Importer) -> impl Serialize + use<> {
    let texts = |ports: &[PciAddress]| ports.iter().map(PciAddress::to_string).collect::<Vec<_>>();
    let (answer, route, refusal, mut unread) = match topology.reach(exporter, importer) {
        Reach::Reachable(route) => ("reachable", Some(route), None, Vec::new()),
        Reach::Refused(refusal) => ("refused", None, Some(refusal), Vec::new()),
        Reach::Unknown(what) => ("unknown", None, None, what),
    };
    let (mut bridge, mut redirects) = (None, Vec::new());
    let via = route.as_ref().map(|route| match &route.via {
        Via::SameFunction => "same_function",
        Via::SameSwitch(switch) => {
            bridge = Some(switch.to_string());
            "same_switch"
        }
        Via::RootPort(port) => {
            bridge = Some(port.to_string());
            "root_port"
        }
        Via::WhitelistedHostBridge { redirects: ports, .. } => {
            redirects = texts(ports);
            "whitelisted_host_bridge"
        }
        Via::Undetermined {
            bridge: above,
            unread: ports,
        } => {
            (bridge, unread) = (Some(above.to_string()), texts(ports));
            "undetermined"
        }
    });
    let refused = refusal.as_ref().map(|refusal| match refusal {
        Refusal::NoP2pdma => "no_p2pdma",
        Refusal::NotPci => "not_pci",
        Refusal::HostBridge { redirects: ports, .. } => {
            redirects = texts(ports);
            "host_bridge"
        }
    });
    let function = importer.function;
    object! {
        exporter: exporter.to_string(),
        nic: importer.name(),
        answer: answer,
        via: via,
        // The switch's or root port's lowest bridge above both.
        bridge: bridge,
        distance: route.as_ref().map(|route| route.distance),
        numa_distance: function.and_then(|function| topology.numa_distance(exporter, function)),
        // Ports whose ACS sends packets up to the root complex.
        redirects: redirects,
        // What decides and could not be read.
        unread: unread,
        refusal: refused,
        reason: refusal.as_ref().map(Refusal::to_string),
        remedy: refusal.as_ref().map(Refusal::remedy),
        caveat: route.and_then(|route| topology.caveat(&route, importer)),
    }
}
