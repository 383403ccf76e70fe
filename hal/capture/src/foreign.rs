//! Names of ioctls whose arguments are not decoded, and the header of RDMA verbs ioctls.

use gaudi_uapi::ioctl::{Parts, iowr};

use crate::value::{Fields, Value};

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

/// Objects and their methods (`rdma/ib_user_ioctl_cmds.h`). The index is the number.
const OBJECTS: [(&str, &[&str]); 17] = [
    (
        "DEVICE",
        &[
            "INVOKE_WRITE",
            "INFO_HANDLES",
            "QUERY_PORT",
            "GET_CONTEXT",
            "QUERY_CONTEXT",
            "QUERY_GID_TABLE",
            "QUERY_GID_ENTRY",
        ],
    ),
    ("PD", &["PD_DESTROY"]),
    ("COMP_CHANNEL", &[]),
    ("CQ", &["CQ_CREATE", "CQ_DESTROY"]),
    ("QP", &["QP_CREATE", "QP_DESTROY"]),
    ("SRQ", &["SRQ_CREATE", "SRQ_DESTROY"]),
    ("AH", &["AH_DESTROY"]),
    (
        "MR",
        &[
            "DM_MR_REG",
            "MR_DESTROY",
            "ADVISE_MR",
            "QUERY_MR",
            "REG_DMABUF_MR",
        ],
    ),
    ("MW", &["MW_DESTROY"]),
    ("FLOW", &["FLOW_DESTROY"]),
    ("XRCD", &["XRCD_DESTROY"]),
    ("RWQ_IND_TBL", &["RWQ_IND_TBL_DESTROY"]),
    ("WQ", &["WQ_CREATE", "WQ_DESTROY"]),
    (
        "FLOW_ACTION",
        &[
            "FLOW_ACTION_ESP_CREATE",
            "FLOW_ACTION_DESTROY",
            "FLOW_ACTION_ESP_MODIFY",
        ],
    ),
    ("DM", &["DM_ALLOC", "DM_FREE"]),
    (
        "COUNTERS",
        &["COUNTERS_CREATE", "COUNTERS_DESTROY", "COUNTERS_READ"],
    ),
    ("ASYNC_EVENT", &["ASYNC_EVENT_ALLOC"]),
];

/// Decodes the start of `struct ib_uverbs_ioctl_hdr`.
pub(crate) fn uverbs(bytes: &[u8]) -> Fields {
    let half = |at: usize| {
        let pair = bytes.get(at..)?.first_chunk()?;
        Some(u16::from_le_bytes(*pair))
    };
    let mut fields = Fields::default();
    let (Some(object), Some(method), Some(attributes)) = (half(2), half(4), half(6)) else {
        fields.push("object_id", Value::Cut);
        return fields;
    };
    let row = OBJECTS.get(usize::from(object));
    let named = |name: Option<&&str>, number: u16| match name {
        Some(name) => Value::Name((*name).to_owned()),
        None => Value::Name(format!("Unknown({number:#x})")),
    };
    fields.push("object_id", named(row.map(|(name, _)| name), object));
    let methods = row.map_or(&[][..], |(_, methods)| methods);
    fields.push("method_id", named(methods.get(usize::from(method)), method));
    fields.push("num_attrs", Value::Unsigned(attributes.into()));
    fields
}
