//! RDMA verbs ioctls, and names of ioctls whose arguments are not decoded.

use gaudi_uapi::ioctl::{Parts, iowr};

use crate::decode::DATA_BYTES;
use crate::record::{IoctlRecord, Memory, Moment};
use crate::value::{Fields, Value};
use crate::walk::{Limits, look_ups, recorded};

/// `RDMA_VERBS_IOCTL` (`rdma/rdma_user_ioctl_cmds.h`).
pub(crate) const RDMA_VERBS_IOCTL: u32 = iowr(0x1b, 1, 24);

/// DRM core ioctls by number (`drm/drm.h`).
const DRM: &[(u8, &str)] = &[
    (0x00, "DRM_IOCTL_VERSION"),
    (0x01, "DRM_IOCTL_GET_UNIQUE"),
    (0x02, "DRM_IOCTL_GET_MAGIC"),
    (0x05, "DRM_IOCTL_GET_CLIENT"),
    (0x06, "DRM_IOCTL_GET_STATS"),
    (0x07, "DRM_IOCTL_SET_VERSION"),
    (0x09, "DRM_IOCTL_GEM_CLOSE"),
    (0x0a, "DRM_IOCTL_GEM_FLINK"),
    (0x0b, "DRM_IOCTL_GEM_OPEN"),
    (0x0c, "DRM_IOCTL_GET_CAP"),
    (0x0d, "DRM_IOCTL_SET_CLIENT_CAP"),
    (0x11, "DRM_IOCTL_AUTH_MAGIC"),
    (0x1e, "DRM_IOCTL_SET_MASTER"),
    (0x1f, "DRM_IOCTL_DROP_MASTER"),
    (0x2d, "DRM_IOCTL_PRIME_HANDLE_TO_FD"),
    (0x2e, "DRM_IOCTL_PRIME_FD_TO_HANDLE"),
    (0xbf, "DRM_IOCTL_SYNCOBJ_CREATE"),
    (0xc0, "DRM_IOCTL_SYNCOBJ_DESTROY"),
    (0xc1, "DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD"),
    (0xc2, "DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE"),
    (0xc3, "DRM_IOCTL_SYNCOBJ_WAIT"),
    (0xc4, "DRM_IOCTL_SYNCOBJ_RESET"),
    (0xc5, "DRM_IOCTL_SYNCOBJ_SIGNAL"),
    (0xca, "DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT"),
    (0xcb, "DRM_IOCTL_SYNCOBJ_QUERY"),
    (0xcc, "DRM_IOCTL_SYNCOBJ_TRANSFER"),
    (0xcd, "DRM_IOCTL_SYNCOBJ_TIMELINE_SIGNAL"),
];

/// VFIO ioctls, starting at `VFIO_BASE` (`linux/vfio.h`). Containers and devices use overlapping
/// numbers.
const VFIO: [&str; 18] = [
    "VFIO_GET_API_VERSION",
    "VFIO_CHECK_EXTENSION",
    "VFIO_SET_IOMMU",
    "VFIO_GROUP_GET_STATUS",
    "VFIO_GROUP_SET_CONTAINER",
    "VFIO_GROUP_UNSET_CONTAINER",
    "VFIO_GROUP_GET_DEVICE_FD",
    "VFIO_DEVICE_GET_INFO",
    "VFIO_DEVICE_GET_REGION_INFO",
    "VFIO_DEVICE_GET_IRQ_INFO",
    "VFIO_DEVICE_SET_IRQS",
    "VFIO_DEVICE_RESET",
    "VFIO_DEVICE_GET_PCI_HOT_RESET_INFO",
    "VFIO_DEVICE_PCI_HOT_RESET",
    "VFIO_DEVICE_QUERY_GFX_PLANE",
    "VFIO_DEVICE_GET_GFX_DMABUF",
    "VFIO_DEVICE_IOEVENTFD",
    "VFIO_DEVICE_FEATURE",
];

/// VFIO ioctls of a container (`/dev/vfio/vfio`), starting at number 12.
const VFIO_CONTAINER: [&str; 6] = [
    "VFIO_IOMMU_GET_INFO",
    "VFIO_IOMMU_MAP_DMA",
    "VFIO_IOMMU_UNMAP_DMA",
    "VFIO_IOMMU_ENABLE",
    "VFIO_IOMMU_DISABLE",
    "VFIO_IOMMU_DIRTY_PAGES",
];

/// Returns the name of an ioctl, if its type and number are known. `path` is the descriptor's path.
pub(crate) fn name(request: u32, path: &str) -> Option<&'static str> {
    let parts = Parts::of(request);
    match parts.kind {
        b'd' => {
            let row = DRM.iter().find(|(number, _)| *number == parts.nr);
            row.map(|(_, name)| *name)
        }
        b';' if parts.size == 0 => {
            let place = usize::from(parts.nr.checked_sub(100)?);
            let of_container = place.checked_sub(12).and_then(|place| VFIO_CONTAINER.get(place));
            match (of_container, path) {
                (Some(name), "/dev/vfio/vfio") => Some(name),
                _ => VFIO.get(place).copied(),
            }
        }
        b'b' if parts.nr == 1 => Some("DMA_BUF_SET_NAME"),
        _ => None,
    }
}

/// A method: its name, and its attributes. The index is the number.
type Method = (&'static str, &'static [&'static str]);

/// Objects and their methods (`rdma/ib_user_ioctl_cmds.h`). The index is the number.
const OBJECTS: [(&str, &[Method]); 17] = [
    (
        "DEVICE",
        &[
            ("INVOKE_WRITE", &["CORE_IN", "CORE_OUT", "WRITE_CMD"]),
            (
                "INFO_HANDLES",
                &["INFO_OBJECT_ID", "INFO_TOTAL_HANDLES", "INFO_HANDLES_LIST"],
            ),
            ("QUERY_PORT", &["QUERY_PORT_PORT_NUM", "QUERY_PORT_RESP"]),
            (
                "GET_CONTEXT",
                &["GET_CONTEXT_NUM_COMP_VECTORS", "GET_CONTEXT_CORE_SUPPORT"],
            ),
            (
                "QUERY_CONTEXT",
                &["QUERY_CONTEXT_NUM_COMP_VECTORS", "QUERY_CONTEXT_CORE_SUPPORT"],
            ),
            (
                "QUERY_GID_TABLE",
                &[
                    "QUERY_GID_TABLE_ENTRY_SIZE",
                    "QUERY_GID_TABLE_FLAGS",
                    "QUERY_GID_TABLE_RESP_ENTRIES",
                    "QUERY_GID_TABLE_RESP_NUM_ENTRIES",
                ],
            ),
            (
                "QUERY_GID_ENTRY",
                &[
                    "QUERY_GID_ENTRY_PORT",
                    "QUERY_GID_ENTRY_GID_INDEX",
                    "QUERY_GID_ENTRY_FLAGS",
                    "QUERY_GID_ENTRY_RESP_ENTRY",
                ],
            ),
        ],
    ),
    ("PD", &[("PD_DESTROY", &["DESTROY_PD_HANDLE"])]),
    ("COMP_CHANNEL", &[]),
    (
        "CQ",
        &[
            (
                "CQ_CREATE",
                &[
                    "CREATE_CQ_HANDLE",
                    "CREATE_CQ_CQE",
                    "CREATE_CQ_USER_HANDLE",
                    "CREATE_CQ_COMP_CHANNEL",
                    "CREATE_CQ_COMP_VECTOR",
                    "CREATE_CQ_FLAGS",
                    "CREATE_CQ_RESP_CQE",
                    "CREATE_CQ_EVENT_FD",
                ],
            ),
            ("CQ_DESTROY", &["DESTROY_CQ_HANDLE", "DESTROY_CQ_RESP"]),
        ],
    ),
    (
        "QP",
        &[
            (
                "QP_CREATE",
                &[
                    "CREATE_QP_HANDLE",
                    "CREATE_QP_XRCD_HANDLE",
                    "CREATE_QP_PD_HANDLE",
                    "CREATE_QP_SRQ_HANDLE",
                    "CREATE_QP_SEND_CQ_HANDLE",
                    "CREATE_QP_RECV_CQ_HANDLE",
                    "CREATE_QP_IND_TABLE_HANDLE",
                    "CREATE_QP_USER_HANDLE",
                    "CREATE_QP_CAP",
                    "CREATE_QP_TYPE",
                    "CREATE_QP_FLAGS",
                    "CREATE_QP_SOURCE_QPN",
                    "CREATE_QP_EVENT_FD",
                    "CREATE_QP_RESP_CAP",
                    "CREATE_QP_RESP_QP_NUM",
                ],
            ),
            ("QP_DESTROY", &["DESTROY_QP_HANDLE", "DESTROY_QP_RESP"]),
        ],
    ),
    (
        "SRQ",
        &[
            (
                "SRQ_CREATE",
                &[
                    "CREATE_SRQ_HANDLE",
                    "CREATE_SRQ_PD_HANDLE",
                    "CREATE_SRQ_XRCD_HANDLE",
                    "CREATE_SRQ_CQ_HANDLE",
                    "CREATE_SRQ_USER_HANDLE",
                    "CREATE_SRQ_MAX_WR",
                    "CREATE_SRQ_MAX_SGE",
                    "CREATE_SRQ_LIMIT",
                    "CREATE_SRQ_MAX_NUM_TAGS",
                    "CREATE_SRQ_TYPE",
                    "CREATE_SRQ_EVENT_FD",
                    "CREATE_SRQ_RESP_MAX_WR",
                    "CREATE_SRQ_RESP_MAX_SGE",
                    "CREATE_SRQ_RESP_SRQ_NUM",
                ],
            ),
            ("SRQ_DESTROY", &["DESTROY_SRQ_HANDLE", "DESTROY_SRQ_RESP"]),
        ],
    ),
    ("AH", &[("AH_DESTROY", &["DESTROY_AH_HANDLE"])]),
    (
        "MR",
        &[
            (
                "DM_MR_REG",
                &[
                    "REG_DM_MR_HANDLE",
                    "REG_DM_MR_OFFSET",
                    "REG_DM_MR_LENGTH",
                    "REG_DM_MR_PD_HANDLE",
                    "REG_DM_MR_ACCESS_FLAGS",
                    "REG_DM_MR_DM_HANDLE",
                    "REG_DM_MR_RESP_LKEY",
                    "REG_DM_MR_RESP_RKEY",
                ],
            ),
            ("MR_DESTROY", &["DESTROY_MR_HANDLE"]),
            (
                "ADVISE_MR",
                &[
                    "ADVISE_MR_PD_HANDLE",
                    "ADVISE_MR_ADVICE",
                    "ADVISE_MR_FLAGS",
                    "ADVISE_MR_SGE_LIST",
                ],
            ),
            (
                "QUERY_MR",
                &[
                    "QUERY_MR_HANDLE",
                    "QUERY_MR_RESP_LKEY",
                    "QUERY_MR_RESP_RKEY",
                    "QUERY_MR_RESP_LENGTH",
                    "QUERY_MR_RESP_IOVA",
                ],
            ),
            (
                "REG_DMABUF_MR",
                &[
                    "REG_DMABUF_MR_HANDLE",
                    "REG_DMABUF_MR_PD_HANDLE",
                    "REG_DMABUF_MR_OFFSET",
                    "REG_DMABUF_MR_LENGTH",
                    "REG_DMABUF_MR_IOVA",
                    "REG_DMABUF_MR_FD",
                    "REG_DMABUF_MR_ACCESS_FLAGS",
                    "REG_DMABUF_MR_RESP_LKEY",
                    "REG_DMABUF_MR_RESP_RKEY",
                ],
            ),
        ],
    ),
    ("MW", &[("MW_DESTROY", &["DESTROY_MW_HANDLE"])]),
    ("FLOW", &[("FLOW_DESTROY", &["DESTROY_FLOW_HANDLE"])]),
    ("XRCD", &[("XRCD_DESTROY", &["DESTROY_XRCD_HANDLE"])]),
    (
        "RWQ_IND_TBL",
        &[("RWQ_IND_TBL_DESTROY", &["DESTROY_RWQ_IND_TBL_HANDLE"])],
    ),
    (
        "WQ",
        &[
            (
                "WQ_CREATE",
                &[
                    "CREATE_WQ_HANDLE",
                    "CREATE_WQ_PD_HANDLE",
                    "CREATE_WQ_CQ_HANDLE",
                    "CREATE_WQ_USER_HANDLE",
                    "CREATE_WQ_TYPE",
                    "CREATE_WQ_EVENT_FD",
                    "CREATE_WQ_MAX_WR",
                    "CREATE_WQ_MAX_SGE",
                    "CREATE_WQ_FLAGS",
                    "CREATE_WQ_RESP_MAX_WR",
                    "CREATE_WQ_RESP_MAX_SGE",
                    "CREATE_WQ_RESP_WQ_NUM",
                ],
            ),
            ("WQ_DESTROY", &["DESTROY_WQ_HANDLE", "DESTROY_WQ_RESP"]),
        ],
    ),
    (
        "FLOW_ACTION",
        &[
            (
                "FLOW_ACTION_ESP_CREATE",
                &[
                    "CREATE_FLOW_ACTION_ESP_HANDLE",
                    "FLOW_ACTION_ESP_ATTRS",
                    "FLOW_ACTION_ESP_ESN",
                    "FLOW_ACTION_ESP_KEYMAT",
                    "FLOW_ACTION_ESP_REPLAY",
                    "FLOW_ACTION_ESP_ENCAP",
                ],
            ),
            ("FLOW_ACTION_DESTROY", &["DESTROY_FLOW_ACTION_HANDLE"]),
            (
                "FLOW_ACTION_ESP_MODIFY",
                &[
                    "CREATE_FLOW_ACTION_ESP_HANDLE",
                    "FLOW_ACTION_ESP_ATTRS",
                    "FLOW_ACTION_ESP_ESN",
                    "FLOW_ACTION_ESP_KEYMAT",
                    "FLOW_ACTION_ESP_REPLAY",
                    "FLOW_ACTION_ESP_ENCAP",
                ],
            ),
        ],
    ),
    (
        "DM",
        &[
            (
                "DM_ALLOC",
                &["ALLOC_DM_HANDLE", "ALLOC_DM_LENGTH", "ALLOC_DM_ALIGNMENT"],
            ),
            ("DM_FREE", &["FREE_DM_HANDLE"]),
        ],
    ),
    (
        "COUNTERS",
        &[
            ("COUNTERS_CREATE", &["CREATE_COUNTERS_HANDLE"]),
            ("COUNTERS_DESTROY", &["DESTROY_COUNTERS_HANDLE"]),
            (
                "COUNTERS_READ",
                &[
                    "READ_COUNTERS_HANDLE",
                    "READ_COUNTERS_BUFF",
                    "READ_COUNTERS_FLAGS",
                ],
            ),
        ],
    ),
    (
        "ASYNC_EVENT",
        &[("ASYNC_EVENT_ALLOC", &["ASYNC_EVENT_ALLOC_FD_HANDLE"])],
    ),
];

/// Commands of the write ABI (`enum ib_uverbs_write_cmds` of `rdma/ib_user_verbs.h`). The index is
/// the number.
const WRITE_COMMANDS: [&str; 41] = [
    "GET_CONTEXT",
    "QUERY_DEVICE",
    "QUERY_PORT",
    "ALLOC_PD",
    "DEALLOC_PD",
    "CREATE_AH",
    "MODIFY_AH",
    "QUERY_AH",
    "DESTROY_AH",
    "REG_MR",
    "REG_SMR",
    "REREG_MR",
    "QUERY_MR",
    "DEREG_MR",
    "ALLOC_MW",
    "BIND_MW",
    "DEALLOC_MW",
    "CREATE_COMP_CHANNEL",
    "CREATE_CQ",
    "RESIZE_CQ",
    "DESTROY_CQ",
    "POLL_CQ",
    "PEEK_CQ",
    "REQ_NOTIFY_CQ",
    "CREATE_QP",
    "QUERY_QP",
    "MODIFY_QP",
    "DESTROY_QP",
    "POST_SEND",
    "POST_RECV",
    "ATTACH_MCAST",
    "DETACH_MCAST",
    "CREATE_SRQ",
    "MODIFY_SRQ",
    "QUERY_SRQ",
    "DESTROY_SRQ",
    "POST_SRQ_RECV",
    "OPEN_XRCD",
    "CLOSE_XRCD",
    "CREATE_XSRQ",
    "OPEN_QP",
];
/// Further commands, from number 50 (`IB_USER_VERBS_CMD_THRESHOLD`).
const EXTENDED_COMMANDS: [&str; 8] = [
    "CREATE_FLOW",
    "DESTROY_FLOW",
    "CREATE_WQ",
    "MODIFY_WQ",
    "DESTROY_WQ",
    "CREATE_RWQ_IND_TBL",
    "DESTROY_RWQ_IND_TBL",
    "MODIFY_CQ",
];
/// The flag of a command number that is an extended one (`IB_USER_VERBS_CMD_FLAG_EXTENDED`).
pub(crate) const IS_EXTENDED: u64 = 0x8000_0000;

/// Attributes of a driver (`UVERBS_ATTR_UHW_IN` and its successors).
const OF_DRIVER: [&str; 3] = ["UHW_IN", "UHW_OUT", "UHW_CORE_DATA"];
const DRIVER_ATTRIBUTES: u16 = 0x1000;
/// Bytes of `struct ib_uverbs_ioctl_hdr` and of `struct ib_uverbs_attr`.
const HEADER: u64 = 24;
const ATTRIBUTE: usize = 16;
/// An attribute has its data in itself up to this length.
const INLINE: u16 = 8;
/// The kernel has written the data (`UVERBS_ATTR_F_VALID_OUTPUT`).
const VALID_OUTPUT: u16 = 2;

/// An attribute of an ioctl (`struct ib_uverbs_attr`).
struct Attribute {
    id: u16,
    len: u16,
    data: u64,
}

pub(crate) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl Attribute {
    fn of(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            id: half(bytes, 0)?,
            len: half(bytes, 2)?,
            data: u64::from_le_bytes(*bytes.get(8..)?.first_chunk()?),
        })
    }

    fn name(&self, method: Option<&Method>) -> Option<&'static str> {
        match self.id.checked_sub(DRIVER_ATTRIBUTES) {
            Some(place) => OF_DRIVER.get(usize::from(place)).copied(),
            None => method?.1.get(usize::from(self.id)).copied(),
        }
    }

    /// Returns the data, or the memory that it refers to.
    fn value(&self, name: &str, memory: &[Memory], at: Moment) -> Value {
        if name == "WRITE_CMD" {
            return Value::Name(command(self.data));
        }
        if self.len <= INLINE {
            return Value::Hex(self.data);
        }
        let bytes = recorded(memory, self.data, at).map(|(_, bytes)| {
            let whole = bytes.len().min(self.len.into());
            let shown = whole.min(DATA_BYTES);
            Box::new(Value::Bytes {
                bytes: bytes[..shown].to_vec(),
                more: (usize::from(self.len) - shown) as u64,
            })
        });
        let address = self.data;
        Value::Pointer { address, to: bytes }
    }
}

/// Returns the name of a command of the write ABI.
pub(crate) fn command(number: u64) -> String {
    let of = |names: &[&'static str], place: u64| names.get(usize::try_from(place).ok()?).copied();
    let place = number & !IS_EXTENDED;
    let name = of(&WRITE_COMMANDS, place).or_else(|| of(&EXTENDED_COMMANDS, place.checked_sub(50)?));
    match name {
        Some(name) if number & IS_EXTENDED != 0 => format!("EX_{name}"),
        Some(name) => name.to_owned(),
        None => format!("Unknown({number:#x})"),
    }
}

/// Decodes an RDMA verbs ioctl: the object, the method, and each attribute by its name. Returns the
/// request, and the attributes that the kernel changed.
pub(crate) fn uverbs(ioctl: &IoctlRecord, limits: Limits) -> (Fields, Fields) {
    let (mut request, mut answer) = (Fields::default(), Fields::default());
    let header = |at| half(&ioctl.input, at);
    let (Some(object), Some(method), Some(count)) = (header(2), header(4), header(6)) else {
        request.push("object_id", Value::Cut);
        return (request, answer);
    };
    let named = |name: Option<&str>, number: u16| match name {
        Some(name) => Value::Name(name.to_owned()),
        None => Value::Name(format!("Unknown({number:#x})")),
    };
    let row = OBJECTS.get(usize::from(object));
    request.push("object_id", named(row.map(|(name, _)| *name), object));
    let row = row.and_then(|(_, methods)| methods.get(usize::from(method)));
    request.push("method_id", named(row.map(|(name, _)| *name), method));
    request.push("num_attrs", Value::Unsigned(count.into()));
    let start = ioctl.argument.wrapping_add(HEADER);
    let at = |moment| recorded(&ioctl.memory, start, moment).map_or(&[][..], |(_, bytes)| bytes);
    let (before, after) = (at(Moment::Entry), at(Moment::Exit));
    let most = limits.values.min(look_ups(&ioctl.memory));
    let all = before.chunks_exact(ATTRIBUTE).take(count.into());
    let is_cut = all.len() > most;
    for (place, bytes) in all.take(most).enumerate() {
        let add = |to: &mut Fields, bytes: &[u8], moment| {
            let Some(attribute) = Attribute::of(bytes) else {
                return;
            };
            let name = attribute.name(row).unwrap_or("Unknown");
            to.push(name, attribute.value(name, &ioctl.memory, moment));
        };
        add(&mut request, bytes, Moment::Entry);
        let end = place * ATTRIBUTE + ATTRIBUTE;
        let written = after.get(end - ATTRIBUTE..end).filter(|written| {
            let is_output = half(written, 4).is_some_and(|flags| flags & VALID_OUTPUT != 0);
            is_output || *written != bytes
        });
        if let Some(written) = written {
            add(&mut answer, written, Moment::Exit);
        }
    }
    if is_cut {
        request.push("attrs", Value::Cut);
    }
    (request, answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An attribute as bytes.
    fn attribute(id: u16, len: u16, flags: u16, data: u64) -> Vec<u8> {
        let halves = [id, len, flags, 0].map(u16::to_le_bytes).concat();
        [halves, data.to_le_bytes().to_vec()].concat()
    }

    fn piece(address: u64, at: Moment, bytes: Vec<u8>) -> Memory {
        Memory {
            address,
            at,
            whole: bytes.len() as u64,
            bytes,
        }
    }

    fn ioctl(object: u16, method: u16, count: u16, memory: Vec<Memory>) -> IoctlRecord {
        let head = [HEADER as u16 + 16 * count, object, method, count];
        IoctlRecord {
            request: RDMA_VERBS_IOCTL,
            argument: 0x1000,
            input: [head.map(u16::to_le_bytes).concat(), vec![0; 16]].concat(),
            memory,
            ..IoctlRecord::default()
        }
    }

    #[test]
    fn attributes_have_names_and_answers() {
        let create = |handle, flags| {
            [
                attribute(0, 0, flags, handle),
                attribute(1, 4, 1, 16),
                attribute(0x1000, 32, 1, 0x9000),
                attribute(0x77, 4, 0, 5),
            ]
            .concat()
        };
        let memory = vec![
            piece(0x1000 + HEADER, Moment::Entry, create(0, 1)),
            piece(0x9000, Moment::Entry, vec![7; 32]),
            piece(0x1000 + HEADER, Moment::Exit, create(3, 3)),
        ];
        let (request, answer) = uverbs(&ioctl(3, 0, 4, memory), Limits::ALL);
        let text = request.to_string();
        assert!(
            text.starts_with("object_id=CQ, method_id=CQ_CREATE, num_attrs=4, CREATE_CQ_HANDLE=0"),
            "{text}"
        );
        assert!(text.contains("CREATE_CQ_CQE=0x10, UHW_IN=<0707"), "{text}");
        assert!(text.ends_with("Unknown=0x5"), "{text}");
        assert_eq!(answer.to_string(), "CREATE_CQ_HANDLE=0x3");
    }

    #[test]
    fn write_commands_have_names() {
        let memory = vec![piece(0x1000 + HEADER, Moment::Entry, attribute(2, 8, 1, 9))];
        let (request, _) = uverbs(&ioctl(0, 0, 1, memory), Limits::ALL);
        assert!(request.to_string().ends_with("WRITE_CMD=REG_MR"), "{request}");
        assert_eq!(command(IS_EXTENDED | 50), "EX_CREATE_FLOW");
        assert_eq!(command(49), "Unknown(0x31)");
    }

    #[test]
    fn truncated_attributes_are_left_out() {
        let memory = vec![piece(0x1000 + HEADER, Moment::Entry, vec![1; 20])];
        let (request, answer) = uverbs(&ioctl(7, 4, 900, memory), Limits::ALL);
        assert_eq!(request.0.len(), 4, "{request}");
        assert!(answer.0.is_empty());
    }

    #[test]
    fn attributes_times_pieces_are_limited() {
        let empty = piece(0x9000, Moment::Entry, Vec::new());
        let mut memory = vec![empty; 1 << 19];
        memory[0] = piece(0x1000 + HEADER, Moment::Entry, vec![1; 16 * 4096]);
        let (request, _) = uverbs(&ioctl(7, 4, 4000, memory), Limits::ALL);
        let text = request.to_string();
        assert!(
            request.0.len() < 100 && text.ends_with("attrs=..."),
            "{}",
            request.0.len()
        );
    }
}
