//! Ioctl numbers and node names against facts that were measured on real headers and machines.

use gaudi_uapi::errno;
use gaudi_uapi::ioctl::Parts;
use gaudi_uapi::{Era, Ioctl, Node, NodeKind};
use proptest::prelude::*;

/// Request numbers as compiled C gives them, per ioctl: before DRM, with DRM, bytes. The `'H'`
/// numbers on accel nodes are those that hl-thunk 2023 issues; no kernel package of that time is
/// left to compile against.
const NUMBERS: [(Ioctl, Option<u32>, u32, usize); 7] = [
    (Ioctl::Info, Some(0xc018_4801), 0xc018_6440, 24),
    (Ioctl::Cb, Some(0xc018_4802), 0xc018_6441, 24),
    (Ioctl::Cs, Some(0xc030_4803), 0xc030_6442, 48),
    (Ioctl::WaitCs, Some(0xc038_4804), 0xc038_6443, 56),
    (Ioctl::Memory, Some(0xc028_4805), 0xc028_6444, 40),
    (Ioctl::Debug, Some(0xc028_4806), 0xc028_6445, 40),
    (Ioctl::Nic, None, 0xc020_6446, 32),
];

#[test]
fn request_numbers_are_those_of_the_headers() {
    for (ioctl, h, drm, size) in NUMBERS {
        assert_eq!(Era::HlMisc.request(ioctl), h, "{ioctl} on /dev/hlN");
        assert_eq!(Era::AccelH.request(ioctl), h, "{ioctl} on /dev/accel before DRM");
        assert_eq!(
            Era::AccelDrm.request(ioctl),
            Some(drm),
            "{ioctl} on /dev/accel with DRM"
        );
        assert_eq!(ioctl.args_size(), size, "bytes of {ioctl}'s argument");
    }
    assert_eq!(
        gaudi_uapi::drm::DRM_IOCTL_VERSION,
        0xc040_6400,
        "DRM_IOCTL_VERSION"
    );
}

#[test]
fn requests_lead_back_to_their_ioctl() {
    for era in Era::ALL {
        for ioctl in Ioctl::ALL {
            let Some(request) = era.request(ioctl) else {
                continue;
            };
            assert_eq!(era.ioctl(request), Some(ioctl), "{ioctl} of {era}");
            assert_eq!(
                era.ioctl(request ^ (8 << 16)),
                Some(ioctl),
                "the size does not choose the ioctl"
            );
            assert_eq!(
                era.ioctl(request ^ (1 << 8)),
                None,
                "another type is another driver's ioctl"
            );
        }
    }
    assert_eq!(
        Era::AccelDrm.ioctl(0xc018_4801),
        None,
        "an old number is unknown to a DRM driver"
    );
    assert_eq!(
        Era::AccelDrm.ioctl(0),
        None,
        "hl-thunk 2023 built with a new header issues 0 to 5"
    );
}

#[test]
fn nodes_print_as_their_paths() {
    let path = |era, kind, index| Node { era, kind, index }.to_string();
    assert_eq!(path(Era::HlMisc, NodeKind::Compute, 3), "/dev/hl3");
    assert_eq!(path(Era::HlMisc, NodeKind::Control, 3), "/dev/hl_controlD3");
    assert_eq!(path(Era::AccelDrm, NodeKind::Compute, 0), "/dev/accel/accel0");
    assert_eq!(
        path(Era::AccelDrm, NodeKind::Control, 10),
        "/dev/accel/accel_controlD10"
    );
}

#[test]
fn foreign_file_names_are_not_nodes() {
    for name in [
        "accel",
        "accel01",
        "accel-1",
        "accel1x",
        "accel_controlD",
        "accel4294967296",
        "hl0",
        "card0",
        "",
    ] {
        assert_eq!(
            Node::from_file_name(Era::AccelDrm, name),
            None,
            "`{name}` is no accel node"
        );
    }
    for name in ["hl", "hl_controlD", "hlx", "hl_0", "accel0"] {
        assert_eq!(
            Node::from_file_name(Era::HlMisc, name),
            None,
            "`{name}` is no hl node"
        );
    }
}

proptest! {
    #![proptest_config(gaudi_random::config(256))]

    #[test]
    fn request_numbers_take_apart_and_together(request: u32) {
        prop_assert_eq!(Parts::of(request).request(), request);
        for era in Era::ALL {
            let _ = era.ioctl(request);
        }
    }

    #[test]
    fn file_names_round_trip(index: u32, control: bool, misc: bool) {
        let era = if misc { Era::HlMisc } else { Era::AccelDrm };
        let kind = if control { NodeKind::Control } else { NodeKind::Compute };
        let node = Node { era, kind, index };
        prop_assert_eq!(Node::from_file_name(era, &node.file_name().to_string()), Some(node));
    }

    #[test]
    fn file_names_of_any_text_are_read(name in ".{0,24}") {
        for era in Era::ALL {
            if let Some(node) = Node::from_file_name(era, &name) {
                prop_assert_eq!(node.file_name().to_string(), name.clone(), "a node's name is the name it was read from");
            }
        }
    }
}

#[test]
fn errnos_have_names() {
    assert!(errno::NAMES.contains(&("ETIMEDOUT", errno::ETIMEDOUT)));
}
