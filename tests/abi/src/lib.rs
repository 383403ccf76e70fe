//! Compares gaudi-uapi with the kernel's C headers, and gaudi-verbs-sys with libibverbs'
//! ([`verbs`]), by a compiled check.
//!
//! - **The C compiler is the judge.** Each row of the tables becomes `_Static_assert`s; a C file of
//!   them is compiled against the real header. No value is parsed, so none can be misread.
//! - **The tables are complete.** Fields and constants come from the tables that gaudi-uapi
//!   generates from its own definitions ([`gaudi_uapi::CStruct`]).
//! - **Every row names the headers that have it.** Structs that grew are checked against the older
//!   header too: the fields that it has agree in place, and its size is a recorded fact.
//! - **Nothing of a header is left out**: every name and field that a header defines has its row
//!   ([`names`], [`structs`]), or stands in a list with the reason why not.
//! - **What no package ships is a table of facts**: the Gaudi3 release's header and the nodes of
//!   the vendor's driver before DRM, in `facts/`, each line marked with where it is from
//!   ([`facts`]).
//! - **The installed header is generated** from the same tables, for systems without one
//!   ([`accel_header`]), and checked like the kernel's headers.
//! - **A missing header is a skip that is counted**, never a pass ([`skip`]).

mod accel_header;
mod facts;
mod headers;
mod layouts;
mod names;
pub mod verbs;

use gaudi_uapi::errno;
use gaudi_uapi::{Era, Ioctl, Named, Since};

pub use accel_header::{ACCEL_HEADER, accel_header};
pub use facts::{Fact, facts};
pub use headers::{Found, Header, skip};
pub use layouts::{Field, Layout, gaudi3_layouts, layouts};
pub use names::{names, structs};

/// A request number and its macro in C.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The macro's name.
    pub c_name: &'static str,
    /// Our number.
    pub value: u32,
    /// The header that defines the macro.
    pub header: Header,
}

/// Every request number that a header defines.
///
/// `Era::AccelH` is not here: no header at hand has type `'H'` on accel nodes. Its numbers are
/// those of `Era::HlMisc`, and gaudi-uapi's own test compares them with recorded facts.
pub fn requests() -> Vec<Request> {
    use gaudi_uapi::dmabuf;
    use gaudi_uapi::view::OTHERS;
    let driver = [
        (Ioctl::Info, "HL_IOCTL_INFO", "DRM_IOCTL_HL_INFO"),
        (Ioctl::Cb, "HL_IOCTL_CB", "DRM_IOCTL_HL_CB"),
        (Ioctl::Cs, "HL_IOCTL_CS", "DRM_IOCTL_HL_CS"),
        (Ioctl::WaitCs, "HL_IOCTL_WAIT_CS", "DRM_IOCTL_HL_WAIT_CS"),
        (Ioctl::Memory, "HL_IOCTL_MEMORY", "DRM_IOCTL_HL_MEMORY"),
        (Ioctl::Debug, "HL_IOCTL_DEBUG", "DRM_IOCTL_HL_DEBUG"),
    ];
    let eras = [
        (Era::HlMisc, Header::Misc),
        (Era::AccelDrm, Header::Accel6),
        (Era::AccelDrm, Header::Accel7),
    ];
    let of_driver = driver.into_iter().flat_map(|(ioctl, misc, accel)| {
        eras.into_iter().filter_map(move |(era, header)| {
            let c_name = if header == Header::Misc { misc } else { accel };
            Some(Request {
                c_name,
                value: era.request(ioctl)?,
                header,
            })
        })
    });
    let of_others = OTHERS.iter().map(|other| Request {
        c_name: other.name,
        value: other.request,
        header: match other.input.base.header {
            "drm/drm.h" => Header::Drm,
            _ => Header::DmaBuf,
        },
    });
    let of_name = Request {
        c_name: "DMA_BUF_SET_NAME_B",
        value: dmabuf::DMA_BUF_SET_NAME_B,
        header: Header::DmaBuf,
    };
    of_driver.chain(of_others).chain([of_name]).collect()
}

/// A table of names in gaudi-uapi.
struct Table {
    /// The tag of the enum in C; empty for macros.
    tag: &'static str,
    /// The field or argument that holds the values.
    place: &'static str,
    names: &'static [Named],
}

fn tables() -> [Table; 46] {
    use gaudi_uapi::{cb, cs, debug, engine, goya_gaudi, info, limits, memory, nic, queue, wait};
    let table = |tag, place, names| Table { tag, place, names };
    [
        table("", "struct hl_cb_in: op", cb::CbOp::NAMES),
        table("", "struct hl_cb_in: flags", cb::CbFlags::NAMES),
        table("", "struct hl_cs_in: cs_flags", cs::CsFlags::NAMES),
        table("", "struct hl_cs_chunk: cs_chunk_flags", cs::CsChunkFlags::NAMES),
        table("", "struct hl_cs_out: status", cs::CsStatus::NAMES),
        table(
            "hl_engine_command",
            "struct hl_cs_in: core_command, engine_command",
            cs::EngineCommand::NAMES,
        ),
        table("", "struct hl_debug_args: op", debug::DebugOp::NAMES),
        table(
            "",
            "Result of HL_DEBUG_OP_FETCH_TRACE",
            debug::DebugFetchStatus::NAMES,
        ),
        table(
            "gaudi3_etrs",
            "struct hl_debug_params_fetch_trace: etr_id",
            debug::Gaudi3Etr::NAMES,
        ),
        table(
            "gaudi2_engine_id",
            "Engines of Gaudi2: bits of the busy masks, ids in records",
            engine::Gaudi2EngineId::NAMES,
        ),
        table(
            "gaudi3_engine_id",
            "Engines of Gaudi3",
            engine::Gaudi3EngineId::NAMES,
        ),
        table(
            "goya_queue_id",
            "struct hl_cs_chunk: queue_index on Goya",
            goya_gaudi::GoyaQueue::NAMES,
        ),
        table(
            "gaudi_queue_id",
            "struct hl_cs_chunk: queue_index on Gaudi",
            goya_gaudi::GaudiQueue::NAMES,
        ),
        table(
            "goya_engine_id",
            "Engines of Goya",
            goya_gaudi::GoyaEngineId::NAMES,
        ),
        table(
            "gaudi_engine_id",
            "Engines of Gaudi",
            goya_gaudi::GaudiEngineId::NAMES,
        ),
        table(
            "hl_goya_pll_index",
            "struct hl_info_args: pll_index on Goya",
            goya_gaudi::GoyaPll::NAMES,
        ),
        table(
            "hl_gaudi_pll_index",
            "struct hl_info_args: pll_index on Gaudi",
            goya_gaudi::GaudiPll::NAMES,
        ),
        table(
            "gaudi_dcores",
            "struct hl_info_args: dcore_id on Gaudi",
            goya_gaudi::GaudiDcore::NAMES,
        ),
        table(
            "hl_goya_dma_direction",
            "Direction in a LIN_DMA packet of Goya",
            goya_gaudi::GoyaDmaDirection::NAMES,
        ),
        table("", "struct hl_info_args: op", info::InfoOp::NAMES),
        table(
            "hl_device_status",
            "struct hl_info_device_status: status",
            info::DeviceStatus::NAMES,
        ),
        table(
            "hl_server_type",
            "struct hl_info_hw_ip_info: server_type",
            info::ServerType::NAMES,
        ),
        table(
            "",
            "struct hl_info_clk_throttle: clk_throttling_reason",
            info::ClkThrottle::NAMES,
        ),
        table(
            "hl_clk_throttling_type",
            "Bit numbers of clk_throttling_reason",
            info::ClkThrottleType::NAMES,
        ),
        table(
            "hl_gaudi2_pll_index",
            "struct hl_info_args: pll_index on Gaudi2",
            info::Gaudi2Pll::NAMES,
        ),
        table(
            "hl_gaudi3_pll_index",
            "struct hl_info_args: pll_index on Gaudi3",
            info::Gaudi3Pll::NAMES,
        ),
        table(
            "",
            "The result of HL_INFO_GET_EVENTS",
            info::NotifierEvents::NAMES,
        ),
        table("", "struct hl_info_razwi_event: flags", info::RazwiFlags::NAMES),
        table(
            "hl_info_fw_err_type",
            "struct hl_info_fw_err_event: err_type",
            info::FwErrType::NAMES,
        ),
        table("", "Sizes and limits", limits::NAMES),
        table("", "struct hl_mem_in: op", memory::MemOp::NAMES),
        table("", "struct hl_mem_in: flags", memory::MemFlags::NAMES),
        table("", "struct hl_nic_args: op", nic::NicOp::NAMES),
        table(
            "hl_nic_swq_granularity",
            "swq_granularity of connections and work queues",
            nic::NicSwqGranularity::NAMES,
        ),
        table(
            "hl_nic_mem_type",
            "struct hl_nic_user_wq_arr_set_in: type",
            nic::NicMemType::NAMES,
        ),
        table(
            "hl_nic_mem_id",
            "struct hl_nic_user_wq_arr_set_in: mem_id",
            nic::NicMemId::NAMES,
        ),
        table("", "struct hl_nic_cqe: type", nic::NicCqeType::NAMES),
        table(
            "",
            "struct hl_nic_eq_poll_out: status",
            nic::NicEqPollStatus::NAMES,
        ),
        table(
            "",
            "struct hl_nic_eq_poll_out: ev_type",
            nic::NicEqEventType::NAMES,
        ),
        table(
            "hl_nic_encap_type",
            "struct hl_nic_user_encap_set_in: encap_type",
            nic::NicEncapType::NAMES,
        ),
        table(
            "hl_nic_db_fifo_type",
            "struct hl_nic_user_db_fifo_set_in: mode",
            nic::NicDbFifoType::NAMES,
        ),
        table(
            "gaudi2_queue_id",
            "struct hl_cs_chunk: queue_index on Gaudi2",
            queue::Gaudi2Queue::NAMES,
        ),
        table("", "struct hl_wait_cs_in: flags", wait::WaitCsFlags::NAMES),
        table(
            "",
            "struct hl_wait_cs_in: the interrupt in flags",
            wait::WaitCsFlags::MASKS,
        ),
        table("", "struct hl_wait_cs_out: status", wait::WaitCsStatus::NAMES),
        table("", "struct hl_wait_cs_out: flags", wait::WaitCsStatusFlags::NAMES),
    ]
}

/// Every constant that only the header of the Gaudi3 release defines. No package ships it: they are
/// compared with `facts/gaudi3.tsv`.
pub fn gaudi3_constants() -> Vec<Named> {
    use gaudi_uapi::{debug, info, nic};
    let plain = |c_name, value: usize| Named {
        c_name,
        value: value as u64,
        since: Since::Gaudi3,
    };
    let request = Era::AccelDrm.request(Ioctl::Nic).unwrap_or_default();
    let more = [
        plain("HL_NIC_USER_BP_OFFS_MAX", nic::HL_NIC_USER_BP_OFFS_MAX),
        plain("HL_NIC_FNA_CMPL_ADDR_NUM", nic::HL_NIC_FNA_CMPL_ADDR_NUM),
        plain("HABANA_LINK_CNT_MAX_NUM", info::HABANA_LINK_CNT_MAX_NUM),
        plain("HABANA_LINK_STR_LEN", info::HABANA_LINK_STR_LEN),
        plain("HL_INFO_MAC_ADDR_MAX_NUM", info::HL_INFO_MAC_ADDR_MAX_NUM),
        plain(
            "HL_DEBUG_ENABLE_ERR_INFO_CAPTURE",
            debug::HL_DEBUG_ENABLE_ERR_INFO_CAPTURE.0 as usize,
        ),
        plain("DRM_IOCTL_HL_NIC", request as usize),
    ];
    let named = tables().into_iter().flat_map(|table| table.names).copied();
    named.filter(|n| n.since == Since::Gaudi3).chain(more).collect()
}

/// Every constant that a header defines, with the header.
///
/// Rows marked `Gaudi3` are left out by [`Header::knows`]: no kernel package ships that header.
pub fn constants() -> Vec<(Header, Named)> {
    use gaudi_uapi::{dmabuf, drm, legacy, vfio};
    let of_driver = tables()
        .into_iter()
        .flat_map(|table| table.names)
        .flat_map(|&n| [Header::Misc, Header::Accel6, Header::Accel7].map(|header| (header, n)));
    let of_dmabuf = dmabuf::DmaBufSyncFlags::NAMES
        .iter()
        .chain(dmabuf::UdmabufFlags::NAMES)
        .chain(vfio::VfioGroupFlags::NAMES)
        .chain(vfio::VfioDeviceFlags::NAMES)
        .chain(vfio::VfioRegionFlags::NAMES)
        .chain(vfio::VfioIrqFlags::NAMES)
        .chain(vfio::VfioIrqSetFlags::NAMES)
        .chain(vfio::VfioFeatureFlags::NAMES)
        .chain(vfio::VfioIommuFlags::NAMES)
        .chain(vfio::VfioDmaMapFlags::NAMES)
        .chain(vfio::VfioDmaUnmapFlags::NAMES)
        .copied();
    let of_drm = [
        drm::DrmCap::NAMES,
        drm::DrmClientCap::NAMES,
        drm::DrmSyncobjCreateFlags::NAMES,
    ];
    let of_drm = of_drm.into_iter().flatten().map(|&n| (Header::Drm, n));
    let plain = |c_name, value| Named {
        c_name,
        value,
        since: Since::V6_1,
    };
    let more = [
        plain("DMA_BUF_SYNC_RW", dmabuf::DmaBufSyncFlags::RW.0),
        plain("DMA_BUF_SYNC_START", dmabuf::DmaBufSyncFlags::START.0),
        plain("DMA_BUF_NAME_LEN", dmabuf::DMA_BUF_NAME_LEN as u64),
    ];
    let errnos = errno::NAMES
        .iter()
        .map(|&(name, value)| plain(name, value.unsigned_abs().into()));
    let of_one_header = [
        (Header::Misc, plain("HL_BUSY_ENGINES_MASK_EXT_SIZE", 2)),
        (
            Header::Misc,
            plain("HL_RAZWI_PAGE_FAULT", legacy::HL_RAZWI_PAGE_FAULT.into()),
        ),
        (
            Header::Misc,
            plain(
                "HL_RAZWI_MMU_ACCESS_ERROR",
                legacy::HL_RAZWI_MMU_ACCESS_ERROR.into(),
            ),
        ),
    ];
    // The highest engine number of Gaudi2 grew with the list.
    let counts = [(Header::Misc, 75), (Header::Accel6, 79), (Header::Accel7, 79)]
        .map(|(header, count)| (header, plain("GAUDI2_ENGINE_ID_SIZE", count)));
    // Before DRM the ioctls' macros are request numbers; with it they are indices.
    let indices = Ioctl::ALL
        .into_iter()
        .filter(|ioctl| *ioctl != Ioctl::Nic)
        .flat_map(|ioctl| {
            let c_name = match ioctl {
                Ioctl::Info => "HL_IOCTL_INFO",
                Ioctl::Cb => "HL_IOCTL_CB",
                Ioctl::Cs => "HL_IOCTL_CS",
                Ioctl::WaitCs => "HL_IOCTL_WAIT_CS",
                Ioctl::Memory => "HL_IOCTL_MEMORY",
                Ioctl::Debug | Ioctl::Nic => "HL_IOCTL_DEBUG",
            };
            [Header::Accel6, Header::Accel7].map(|header| (header, plain(c_name, ioctl.index().into())))
        });
    // The numbers that the driver dispatches: from the first to the one after the last.
    let ends = [(Header::Misc, 1), (Header::Accel6, 0x40), (Header::Accel7, 0x40)]
        .into_iter()
        .flat_map(|(header, first)| {
            let end = first + u64::from(Ioctl::Debug.index()) + 1;
            [("HL_COMMAND_START", first), ("HL_COMMAND_END", end)]
                .map(|(c_name, value)| (header, plain(c_name, value)))
        });
    let per_header = of_one_header.into_iter().chain(counts).chain(indices).chain(ends);
    let of_dmabuf = of_dmabuf.chain(more).chain(errnos).map(|n| (Header::DmaBuf, n));
    of_driver
        .chain(of_dmabuf)
        .chain(of_drm)
        .chain(per_header)
        .filter(|(header, n)| header.knows(n.since))
        .collect()
}

/// The C file that holds all that is claimed about a header.
pub fn c_file(
    header: Header,
    layouts: &[Layout],
    constants: &[(Header, Named)],
    requests: &[Request],
) -> String {
    let mut c = String::from(header.prologue());
    for layout in layouts {
        layout.assert_in(header, &mut c);
    }
    for (_, n) in constants.iter().filter(|(h, _)| *h == header) {
        push_assert(
            &mut c,
            &format!("(unsigned long long)({}) == {:#x}ull", n.c_name, n.value),
            n.c_name,
        );
    }
    for r in requests.iter().filter(|r| r.header == header) {
        push_assert(&mut c, &format!("{} == {:#x}u", r.c_name, r.value), r.c_name);
    }
    c
}

fn push_assert(c: &mut String, condition: &str, what: &str) {
    c.push_str(&format!("_Static_assert({condition}, \"{what}\");\n"));
}
