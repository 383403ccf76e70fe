//! Registering memory: rules that are checked before a NIC is asked, and what comes of it.

#![expect(
    unsafe_code,
    reason = "registering a part of a mapping by its address is a promise"
)]

use std::time::Duration;

use gaudi_seam::{DeviceVa, Errno, HostVa};
use gaudi_verbs::{Access, MrAddr, MrState, RegionGroup, RemoteAddr, WcStatus, WriteOrder};

use crate::bench::*;
use crate::suite::cases;

cases! {
    "regions";

    fn iova_must_match_page_offset(f) [DmaBuf] {
        let a = End::new(&f.a);
        let memory = f.make_dmabuf(DEVICE);
        for (offset, iova) in [(0, 1), (0x123, 0x124), (0x1800, 0)] {
            let part = memory.window.window(offset, 0x1000).unwrap();
            refused(a.pd.reg_dmabuf_mr(&part, MrAddr(iova), FULL), Errno::EINVAL);
        }
        let part = memory.window.window(0x123, 0x1000).unwrap();
        a.pd.reg_dmabuf_mr(&part, MrAddr(0x9_9123), FULL).unwrap().close().unwrap();
    }

    fn rights_to_write_need_the_local_one(f) [DmaBuf] {
        let a = End::new(&f.a);
        let memory = f.make_dmabuf(DEVICE);
        for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::REMOTE_WRITE | Access::REMOTE_READ] {
            refused(a.pd.reg_dmabuf_mr(&memory.window, MrAddr(0), access), Errno::EINVAL);
            refused(a.pd.reg_mapping(a.host.clone(), access), Errno::EINVAL);
        }
    }

    fn unknown_rights_are_refused(f) {
        let a = End::new(&f.a);
        for bit in [5, 6, 7, 19, 31] {
            let access = Access::from_bits_retain(1 << bit);
            refused(a.pd.reg_mapping(a.host.clone(), access), Errno::EINVAL);
        }
    }

    fn a_dma_buf_takes_no_memory_windows(f) [DmaBuf] {
        let a = End::new(&f.a);
        let memory = f.make_dmabuf(DEVICE);
        refused(a.pd.reg_dmabuf_mr(&memory.window, MrAddr(0), FULL | Access::MW_BIND), Errno::EINVAL);
    }

    fn iova_must_not_wrap(f) [DmaBuf] {
        let a = End::new(&f.a);
        let memory = f.make_dmabuf(DEVICE);
        refused(a.pd.reg_dmabuf_mr(&memory.window, MrAddr(u64::MAX - 0xfff), FULL), Errno::EINVAL);
    }

    fn a_region_of_no_bytes_is_refused(f) {
        let a = End::new(&f.a);
        let address = HostVa(a.mr.addr().0);
        // SAFETY: no byte is registered; the mapping lives longer anyway.
        refused(unsafe { a.pd.reg_mr(address, 0, address.into(), FULL) }, Errno::EINVAL);
    }

    fn host_memory_iova_matches_page_offset(f) {
        let a = End::new(&f.a);
        let address = HostVa(a.mr.addr().0);
        // SAFETY: the mapping outlives the region, and no reference into it exists.
        refused(unsafe { a.pd.reg_mr(address, 4096, MrAddr(8), FULL) }, Errno::EINVAL);
    }

    fn host_memory_accepts_another_iova(f) {
        let (mut a, b) = pair(f);
        let address = HostVa(b.mr.addr().0 + 8192);
        // SAFETY: the mapping outlives the region, and no reference into it exists.
        let mr = unsafe { b.pd.reg_mr(address, 4096, MrAddr(0x1000), FULL) }.unwrap();
        a.put(0, b"elsewhere");
        let to = RemoteAddr { addr: MrAddr(0x1005), rkey: mr.rkey() };
        a.qp.post_send(1).write(&[a.mr.part(0, 9)], to).post().unwrap();
        a.succeeds(1);
        same("the memory", &b.bytes(8192 + 5, 9), b"elsewhere");
        mr.close().unwrap();
    }

    fn a_region_may_begin_and_end_anywhere(f) {
        let (mut a, b) = pair(f);
        let address = HostVa(b.mr.addr().0 + 8191);
        // SAFETY: as above.
        let mr = unsafe { b.pd.reg_mr(address, 4099, address.into(), FULL) }.unwrap();
        let text = pattern(4099, 1);
        a.put(0, &text);
        a.qp.post_send(1).write(&[a.mr.part(0, 4099)], mr.remote().at(0, 4099).unwrap()).post().unwrap();
        a.succeeds(1);
        same("the memory", &b.bytes(8191, 4099), &text);
        mr.close().unwrap();
    }

    fn device_addresses_are_the_regions_addresses(f) [DmaBuf] {
        let (mut a, b) = pair(f);
        let memory = f.make_dmabuf(DEVICE);
        let part = memory.window.window(0x2040, 0x1000).unwrap();
        let mr = b.pd.reg_device_mr(&part, DeviceVa(DEVICE_VA), FULL).unwrap();
        assert_eq!(mr.addr(), MrAddr(DEVICE_VA + 0x2040));
        a.put(0, b"device");
        let to = RemoteAddr { addr: MrAddr(DEVICE_VA + 0x2041), rkey: mr.rkey() };
        a.qp.post_send(1).write(&[a.mr.part(0, 6)], to).post().unwrap();
        a.succeeds(1);
        same("the dma-buf", &bytes_of(&memory.view, 0x2041, 6), b"device");
    }

    fn relaxed_ordering_is_taken_or_ignored(f) [DmaBuf] {
        let (mut a, b) = pair(f);
        let (memory, mr) = b.device(f, FULL | Access::RELAXED_ORDERING);
        let text = pattern(50_000, 2);
        a.put(0, &text);
        a.qp.post_send(1).write(&[a.mr.part(0, 50_000)], mr.remote().at(0, 50_000).unwrap()).post().unwrap();
        a.succeeds(1);
        same("the dma-buf", &bytes_of(&memory.view, 0, 50_000), &text);
    }

    fn relaxed_region_has_strict_companion(f) [DmaBuf, Atomics] {
        let (mut a, b) = pair(f);
        let memory = f.make_dmabuf(DEVICE);
        let both = b
            .pd
            .reg_dmabuf_ordered(&memory.window, MrAddr(DEVICE_VA), FULL, WriteOrder::Relaxed)
            .unwrap();
        assert!(both.bulk().access().contains(Access::RELAXED_ORDERING));
        let was = a.mr.part(0, 8);
        a.qp.post_send(1).fetch_add(&was, both.strict().remote().at(0, 8).unwrap(), 1).post().unwrap();
        a.succeeds(1);
        a.qp.post_send(2).fetch_add(&was, both.bulk().remote().at(0, 8).unwrap(), 1).post().unwrap();
        a.completes(2, WcStatus::REM_ACCESS_ERR);
        both.close().unwrap();
    }

    fn a_dma_buf_outlives_its_makers_descriptor(f) [DmaBuf] {
        let (mut a, b) = pair(f);
        let memory = f.make_dmabuf(DEVICE);
        let (window, view) = (memory.window, memory.view);
        let mr = b.pd.reg_dmabuf_mr(&window, MrAddr(0), FULL).unwrap();
        drop(window);
        a.put(0, b"still there");
        a.qp.post_send(1).write(&[a.mr.part(0, 11)], mr.remote().at(0, 11).unwrap()).post().unwrap();
        a.succeeds(1);
        same("the memory", &bytes_of(&view, 0, 11), b"still there");
    }

    fn region_is_live_until_invalidated(f) [DmaBuf] {
        let a = End::new(&f.a);
        let (_memory, mr) = a.device(f, FULL);
        assert_eq!(mr.state().unwrap(), MrState::Live);
        mr.mark(MrState::Suspect);
        assert_eq!(mr.state().unwrap(), MrState::Suspect);
        assert!(mr.clear_suspicion());
        assert_eq!(mr.state().unwrap(), MrState::Live);
        mr.close().unwrap();
    }

    fn group_ends_its_regions_at_once(f) [DmaBuf] {
        let (mut a, b) = pair(f);
        let group = RegionGroup::new("a device");
        let ((_m1, first), (_m2, second)) = (b.device(f, FULL), b.device(f, FULL));
        group.add(&first);
        group.add(&second);
        assert_eq!(group.suspect(), 2);
        assert_eq!(first.state().unwrap(), MrState::Suspect);
        let blockers = group.blockers();
        assert_eq!(blockers.own.len(), 2, "{blockers}");
        assert_eq!(group.revoke().unwrap(), 2);
        assert_eq!((first.state().unwrap(), second.window().is_none()), (MrState::Revoked, true));
        assert!(group.regions().is_empty());
        a.qp.post_send(1).write(&[a.mr.part(0, 4)], first.remote().at(0, 4).unwrap()).post().unwrap();
        a.completes(1, WcStatus::REM_ACCESS_ERR);
        first.close().unwrap();
        drop(second);
    }

    fn region_closes_off_latency_path(f) [DmaBuf] {
        let (mut a, b) = pair(f);
        let (_memory, mr) = b.device(f, FULL);
        let to = mr.remote().at(0, 4).unwrap();
        let closing = mr.close_later();
        closing.wait(Duration::from_secs(60)).unwrap();
        a.qp.post_send(1).write(&[a.mr.part(0, 4)], to).post().unwrap();
        a.completes(1, WcStatus::REM_ACCESS_ERR);
    }

    fn a_context_lists_its_regions(f) [DmaBuf] {
        let a = End::new(&f.a);
        let before = f.a.regions().len();
        let (_memory, mr) = a.device(f, Access::REMOTE_READ);
        let listed = f.a.regions();
        assert_eq!(listed.len(), before + 1);
        let info = listed.iter().find(|info| info.rkey == mr.rkey()).expect("the region is listed");
        assert_eq!((info.len, info.access, info.dmabuf.is_some()), (DEVICE, Access::REMOTE_READ, true));
        mr.close().unwrap();
        assert_eq!(f.a.regions().len(), before);
    }
}
