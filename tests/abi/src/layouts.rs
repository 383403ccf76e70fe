//! Every struct of gaudi-uapi that a header defines: size, fields, and since when.

use std::mem::offset_of;

use gaudi_uapi::debug::DebugOp;
use gaudi_uapi::info::{HlInfoHwIpInfo, InfoOp};
use gaudi_uapi::{CStruct, CType, Since};

use crate::headers::Header;
use crate::push_assert;

/// One struct and its counterpart in C.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The type in C: `struct hl_cb_in`, or the outer struct for a view of a part of it.
    pub c_type: &'static str,
    /// Our size in bytes; nothing for a view whose counterpart in C has no name.
    pub size: Option<usize>,
    /// The size in Linux 6.1, if it differs.
    pub size_6_1: Option<usize>,
    /// The oldest header that defines it.
    pub since: Since,
    /// The fields.
    pub fields: Vec<Field>,
    /// The headers that define it.
    pub home: &'static [Header],
}

/// One field under one of its names in C.
#[derive(Clone, Debug)]
pub struct Field {
    /// The path in C: `alloc.mem_size`.
    pub c_path: &'static str,
    /// Bytes from the start of the C type.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// The oldest header with this name.
    pub since: Since,
    /// The type of the field.
    pub kind: CType,
}

impl Layout {
    /// Returns a struct with those field names whose version `knows` accepts.
    fn of(c: &CStruct, knows: impl Fn(Since) -> bool) -> Self {
        let fields = c.fields.iter().flat_map(|field| {
            field.c_names.iter().map(|&(c_path, since)| Field {
                c_path,
                offset: c.view_at.unwrap_or(0) + field.offset,
                size: field.size,
                since,
                kind: field.kind,
            })
        });
        Self {
            c_type: c.c_name,
            size: c.view_at.is_none().then_some(c.size),
            size_6_1: c.size_6_1,
            since: c.since,
            fields: fields.filter(|field| knows(field.since)).collect(),
            home: match c.header {
                "misc/habanalabs.h" => &[Header::Misc],
                "drm/drm.h" => &[Header::Drm],
                header if header.starts_with("linux/") => &[Header::DmaBuf],
                _ => DRIVER,
            },
        }
    }

    fn size_in(&self, header: Header) -> Option<usize> {
        match header {
            Header::Misc => self.size_6_1.or(self.size),
            _ => self.size,
        }
    }

    /// Appends what a header must agree to.
    pub(crate) fn assert_in(&self, header: Header, c: &mut String) {
        if !header.knows(self.since) || !self.home.contains(&header) {
            return;
        }
        let c_type = self.c_type;
        if let Some(size) = self.size_in(header) {
            push_assert(
                c,
                &format!("sizeof({c_type}) == {size}"),
                &format!("sizeof {c_type}"),
            );
        }
        for Field {
            c_path,
            offset,
            size,
            since,
            ..
        } in &self.fields
        {
            if header.knows(*since) {
                let what = format!("{c_type} {c_path}");
                push_assert(
                    c,
                    &format!("offsetof({c_type}, {c_path}) == {offset}"),
                    &format!("offset of {what}"),
                );
                let condition = format!("sizeof((({c_type} *)0)->{c_path}) == {size}");
                push_assert(c, &condition, &format!("size of {what}"));
            }
        }
    }
}

pub(crate) fn field_size<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

/// Where most structs are defined.
const DRIVER: &[Header] = &[Header::Misc, Header::Accel6, Header::Accel7];

macro_rules! structs {
    ($($module:ident { $($name:ident)* })*) => {
        &[$($(gaudi_uapi::$module::$name::LAYOUT),*),*]
    };
}

/// The structs that no INFO or DEBUG operation refers to.
const STRUCTS: &[CStruct] = structs! {
    cb { HlCbIn HlCbOut HlCbOutUsage HlCbArgs }
    cs { HlCsChunk HlCsIn HlCsInChunks HlCsInEngineCores HlCsInEngines HlCsInReserve }
    cs { HlCsInEncapsulated }
    cs { HlCsOut HlCsOutReserve HlCsArgs }
    wait { HlWaitCsIn HlWaitCsInCs HlWaitCsInInterrupt HlWaitCsInMulti HlWaitCsOut HlWaitCsArgs }
    memory { HlMemIn HlMemInAlloc HlMemInFree HlMemInMapDevice HlMemInMapHost HlMemInMapBlock }
    memory { HlMemInUnmap HlMemInExportDmabufFd HlMemInRegDmabufFd HlMemOut HlMemOutBlock HlMemArgs }
    memory { HlMemOutFd }
    info { HlInfoArgs HlUserMapping HlInfoHabanaLinkCounters HlInfoTimeSyncPerDie }
    debug { HlDebugArgs }
    legacy { HlInfoRazwiEvent61 HlMemInExportDmabufFd61 }
    dmabuf { DmaBufSync DmaBufExportSyncFile DmaBufImportSyncFile }
    dmabuf { UdmabufCreate UdmabufCreateItem UdmabufCreateList DmaHeapAllocationData }
    dmabuf { SyncMergeData SyncFenceInfo SyncFileInfo }
    drm { DrmVersion DrmUnique DrmAuth DrmSetVersion DrmGemClose DrmGemFlink DrmGemOpen DrmGetCap }
    drm { DrmSetClientCap DrmPrimeHandle DrmSyncobjCreate DrmSyncobjDestroy DrmSyncobjArray }
    drm { DrmSyncobjTimelineArray }
    vfio { VfioGroupStatus VfioRegionInfo VfioIrqInfo VfioIrqSet VfioPciHotResetInfo }
    vfio { VfioPciHotReset VfioDmaMap VfioDmaUnmap }
    dmabuf { VfioDeviceFeature }
    nic { HlNicArgs HlNicAllocConnIn HlNicAllocConnOut HlNicReqConnCtxIn HlNicReqConnCtxOut }
    nic { HlNicResConnCtxIn HlNicDestroyConnIn HlNicAllocCollConnIn HlNicAllocCollConnOut }
    nic { HlNicDumpQpIn HlNicCqe HlNicUserWqArrSetIn HlNicUserWqArrSetOut HlNicUserWqArrUnsetIn }
    nic { HlNicUserCqSetIn HlNicUserCqUnsetIn HlNicUserCqUpdateCiIn }
    nic { HlNicAllocUserCqIdIn HlNicAllocUserCqIdOut }
    nic { HlNicUserCqIdSetIn HlNicUserCqIdSetOut HlNicUserCqIdUnsetIn }
    nic { HlNicUserCcqSetIn HlNicUserCcqSetOut HlNicUserCcqUnsetIn }
    nic { HlNicSetUserAppParamsIn HlNicGetUserAppParamsIn HlNicGetUserAppParamsOut }
    nic { HlNicAllocUserDbFifoIn HlNicAllocUserDbFifoOut }
    nic { HlNicUserDbFifoSetIn HlNicUserDbFifoSetOut HlNicUserDbFifoUnsetIn }
    nic { HlNicEqPollIn HlNicEqPollOut }
    nic { HlNicUserEncapAllocIn HlNicUserEncapAllocOut HlNicUserEncapSetIn HlNicUserEncapUnsetIn }
};

fn structs() -> impl Iterator<Item = &'static CStruct> {
    let answers = InfoOp::NAMES
        .iter()
        .filter_map(|op| InfoOp(op.value as u32).answer());
    let inputs = DebugOp::NAMES
        .iter()
        .filter_map(|op| DebugOp(op.value as u32).input());
    STRUCTS.iter().chain(answers).chain(inputs)
}

/// Returns every layout of the mainline headers.
pub fn layouts() -> Vec<Layout> {
    let mainline = |since| since < Since::Gaudi3;
    let ours = structs().filter(|c| mainline(c.since));
    let mut all: Vec<_> = ours.map(|c| Layout::of(c, mainline)).collect();
    // C names of a part of a field, or of two fields together.
    let parts = [
        // Exists only in Linux 6.1, in place of two fields that are reserved now.
        (
            "struct hl_info_hw_ip_info",
            "pad2",
            offset_of!(HlInfoHwIpInfo, reserved1),
            2,
            CType::Unsigned,
            &DRIVER[..1],
        ),
    ];
    all.extend(parts.map(|(c_type, c_path, offset, size, kind, home)| Layout {
        c_type,
        size: None,
        size_6_1: None,
        since: Since::V6_1,
        fields: vec![Field {
            c_path,
            offset,
            size,
            since: Since::V6_1,
            kind,
        }],
        home,
    }));
    all
}

/// Returns the layouts that only the header of the Gaudi3 release defines, including new names in
/// older structs. No package contains that header, so these rows are compared with
/// `facts/gaudi3.tsv` instead of C.
pub fn gaudi3_layouts() -> Vec<Layout> {
    let gaudi3 = |since| since == Since::Gaudi3;
    let all = structs().map(|c| Layout {
        // The only older struct whose size is in the table.
        size: (gaudi3(c.since) && c.view_at.is_none() || c.c_name == HlInfoHwIpInfo::LAYOUT.c_name)
            .then_some(c.size),
        home: &[],
        ..Layout::of(c, gaudi3)
    });
    all.filter(|layout| !layout.fields.is_empty()).collect()
}
