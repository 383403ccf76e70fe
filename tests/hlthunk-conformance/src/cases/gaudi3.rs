//! Functions that exist only in the Gaudi3 release: they fail on this device by their conventions.

use std::ptr;

use gaudi_conformance::{Verdict, equal, holds};
use nix::errno::Errno;

use crate::answer::{fails, number, ok, refused};
use crate::bench::Bench;
use crate::card::Card;
use crate::case::cases;
use crate::types::{HwIpInfo, Room};

cases! { "gaudi3":
    "index-from-module-id", "hlthunk.h:hlthunk_get_device_index_from_module_id" => index;
    "index-from-unknown-module-id-fails", "hlthunk.h:hlthunk_get_device_index_from_module_id" => index_unknown;
    "time-sync-per-die-is-refused", "common/habanalabs_ioctl.c:_hl_info_ioctl" => per_die;
    "signed-device-info", "common/habanalabs_ioctl.c:dev_info_signed" => signed;
    "ports-masks", "hlthunk.h:hlthunk_nic_get_ports_masks" => ports;
    "link-state-is-refused", "common/habanalabs_ioctl.c:_hl_info_ioctl" => link_state;
    "mac-address-into-null-fails", "hlthunk.h:hlthunk_get_mac_addr_info" => mac;
    "read-block-is-refused", "common/habanalabs_ioctl.c:hl_debug_ioctl" => read_block;
    "xe-is-refused", "hlthunk.h:hlthunk_nic_xe_vm_create" => xe;
    "connections-are-refused", "hlthunk.h:hlthunk_alloc_conn" => connections;
    "completion-queues-are-refused", "hlthunk.h:hlthunk_nic_cq_create" => completion_queues;
    "user-queues-are-refused", "hlthunk.h:hlthunk_nic_user_cq_id_alloc" => user_queues;
    "doorbells-and-encapsulations-are-refused", "hlthunk.h:hlthunk_nic_user_db_fifo_set" => doorbells;
    "parameters-and-work-queues-are-refused", "hlthunk.h:hlthunk_nic_wq_arr_set" => parameters;
    "null-arguments-fail", "hlthunk.h:hlthunk_nic_user_ccq_set" => nulls;
}

fn index(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut info = HwIpInfo::default();
    ok(
        "hlthunk_get_hw_ip_info",
        card.hl.get_hw_ip_info(card.fd, Some(&mut info)),
    )?;
    let index = number(
        "the index",
        card.hl.get_device_index_from_module_id(info.module_id),
    )?;
    let id = super::open::bus_id(card)?;
    equal(
        "the index by bus id",
        card.hl.get_device_index_from_pci_bus_id(id.as_ptr()),
        index,
    )
}

fn index_unknown(bench: &mut Bench) -> Verdict {
    fails(
        "the index of module 77",
        bench.hl.get_device_index_from_module_id(77),
    )
}

fn per_die(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    fails(
        "the time of a die",
        card.hl
            .get_time_sync_per_die_info(card.fd, 0, Some(&mut Room::default())),
    )
}

fn signed(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut info = Room::default();
    ok(
        "hlthunk_get_dev_info_signed",
        card.hl.get_dev_info_signed(card.fd, 78, Some(&mut info)),
    )?;
    holds("the answer has content", info != Room::default(), "none")
}

fn ports(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut masks = Room([u64::MAX; 1024]);
    ok(
        "hlthunk_nic_get_ports_masks",
        card.hl.nic_get_ports_masks(card.fd, Some(&mut masks)),
    )?;
    equal("the word past the two masks", masks.0[2], u64::MAX)
}

fn link_state(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (mut input, mut output) = (Room::default(), Room::default());
    fails(
        "a link's state",
        card.hl
            .get_habana_link_state(card.fd, Some(&mut input), Some(&mut output)),
    )?;
    fails(
        "a link's counters",
        card.hl
            .get_habana_link_statistics(card.fd, Some(&mut input), Some(&mut output)),
    )
}

fn mac(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    fails(
        "MAC addresses with a NULL struct",
        card.hl.get_mac_addr_info(card.fd, None),
    )
}

fn read_block(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let mut words = [0; 16];
    let code = card
        .hl
        .device_memory_read_block_experimental(card.fd, words.as_mut_ptr(), 0, 64, 0);
    fails("reading a block", code)
}

fn xe(bench: &mut Bench) -> Verdict {
    let card = bench.card()?;
    let (hl, fd, mut vm, mut vm_fd) = (card.hl, card.fd, 0, 0);
    fails(
        "creating an address space",
        hl.nic_xe_vm_create(fd, Some(&mut vm), Some(&mut vm_fd)),
    )?;
    fails("destroying an address space", hl.nic_xe_vm_destroy(fd, 0, -1))?;
    let memory = hl.nic_xe_device_memory_alloc(fd, 0, 4096);
    let errno = Errno::last();
    equal("an allocation", memory, 0)?;
    holds("errno is set", errno as i32 != 0, errno)?;
    fails("a free", hl.nic_xe_device_memory_free(fd, 1))?;
    fails(
        "a mapping",
        hl.nic_xe_memory_map(fd, 0, 1, ptr::null_mut(), 0, 4096),
    )?;
    fails("an unmap", hl.nic_xe_memory_unmap(fd, 0, 0, 4096))
}

fn room() -> Room {
    Room::default()
}

fn connections(bench: &mut Bench) -> Verdict {
    let Card { hl, fd } = bench.card()?;
    let mut id = 7;
    fails("alloc_conn", hl.alloc_conn(fd, 0, Some(&mut id)))?;
    fails(
        "alloc_coll_conn",
        hl.alloc_coll_conn(fd, Some(&mut room()), Some(&mut id)),
    )?;
    fails("destroy_conn", hl.destroy_conn(fd, 0, 0))?;
    let code = hl.set_requester_conn_ctx(fd, 0, 0, Some(&mut room()), Some(&mut room()));
    fails("set_requester_conn_ctx", code)?;
    fails(
        "set_responder_conn_ctx",
        hl.set_responder_conn_ctx(fd, 0, 0, Some(&mut room())),
    )?;
    equal("the connection id after failures", id, 7)
}

fn completion_queues(bench: &mut Bench) -> Verdict {
    let Card { hl, fd } = bench.card()?;
    let (mut handle, mut a, mut b, mut c) = (7, 0, 0, 0);
    fails("nic_cq_create", hl.nic_cq_create(fd, 64, Some(&mut handle)))?;
    fails("nic_cq_destroy", hl.nic_cq_destroy(fd, 0))?;
    fails(
        "nic_cq_update_consumed_entries",
        hl.nic_cq_update_consumed_entries(fd, 0, 1),
    )?;
    let code = hl.nic_cq_wait(fd, 0, Some(&mut a), Some(&mut b), Some(&mut c), u64::MAX);
    fails("nic_cq_wait", code)?;
    fails("nic_eq_poll", hl.nic_eq_poll(fd, 0, Some(&mut room())))
}

fn user_queues(bench: &mut Bench) -> Verdict {
    let Card { hl, fd } = bench.card()?;
    fails(
        "nic_user_ccq_set",
        hl.nic_user_ccq_set(fd, Some(&mut room()), Some(&mut room())),
    )?;
    // The one of them whose errno decides: the driver has no such ioctl (drm_ioctl.c:drm_ioctl).
    refused("nic_user_ccq_unset", hl.nic_user_ccq_unset(fd, 0), Errno::EINVAL)?;
    fails(
        "nic_user_cq_id_alloc",
        hl.nic_user_cq_id_alloc(fd, Some(&mut room()), Some(&mut room())),
    )?;
    fails(
        "nic_user_cq_id_set",
        hl.nic_user_cq_id_set(fd, Some(&mut room()), Some(&mut room())),
    )?;
    fails(
        "nic_user_cq_id_unset",
        hl.nic_user_cq_id_unset(fd, Some(&mut room())),
    )?;
    fails("nic_user_cq_set", hl.nic_user_cq_set(fd, 0, 0, 64))?;
    fails("nic_user_cq_unset", hl.nic_user_cq_unset(fd, 0))?;
    fails("nic_user_cq_update_ci", hl.nic_user_cq_update_ci(fd, 0, 0))
}

fn doorbells(bench: &mut Bench) -> Verdict {
    let Card { hl, fd } = bench.card()?;
    let mut id = 7;
    fails(
        "nic_alloc_user_db_fifo",
        hl.nic_alloc_user_db_fifo(fd, 0, Some(&mut id)),
    )?;
    fails(
        "nic_user_db_fifo_set",
        hl.nic_user_db_fifo_set(fd, Some(&mut room()), Some(&mut room())),
    )?;
    fails("nic_user_db_fifo_unset", hl.nic_user_db_fifo_unset(fd, 0, 0))?;
    fails(
        "nic_user_encap_alloc",
        hl.nic_user_encap_alloc(fd, 0, Some(&mut id)),
    )?;
    fails("nic_user_encap_set", hl.nic_user_encap_set(fd, Some(&mut room())))?;
    fails("nic_user_encap_unset", hl.nic_user_encap_unset(fd, 0, 0))
}

fn parameters(bench: &mut Bench) -> Verdict {
    let Card { hl, fd } = bench.card()?;
    let mut text = [0_u8; 64];
    fails(
        "nic_user_get_app_params",
        hl.nic_user_get_app_params(fd, 0, Some(&mut room())),
    )?;
    fails(
        "nic_user_set_app_params",
        hl.nic_user_set_app_params(fd, 0, Some(&mut room())),
    )?;
    fails(
        "nic_wq_arr_set",
        hl.nic_wq_arr_set(fd, Some(&mut room()), Some(&mut room())),
    )?;
    fails("nic_wq_arr_unset", hl.nic_wq_arr_unset(fd, 0, 1))?;
    fails(
        "nic_dump_qp",
        hl.nic_dump_qp(fd, 0, 0, 0, text.as_mut_ptr().cast(), 64),
    )
}

fn nulls(bench: &mut Bench) -> Verdict {
    let Card { hl, fd } = bench.card()?;
    fails("link state", hl.get_habana_link_state(fd, None, None))?;
    fails("link counters", hl.get_habana_link_statistics(fd, None, None))?;
    fails("time of a die", hl.get_time_sync_per_die_info(fd, 0, None))?;
    fails("signed info", hl.get_dev_info_signed(fd, 0, None))?;
    fails("ports", hl.nic_get_ports_masks(fd, None))?;
    fails(
        "block",
        hl.device_memory_read_block_experimental(fd, ptr::null_mut(), 0, 64, 0),
    )?;
    fails("space", hl.nic_xe_vm_create(fd, None, None))?;
    fails("connection", hl.alloc_conn(fd, 0, None))?;
    fails("collective connection", hl.alloc_coll_conn(fd, None, None))?;
    fails("requester", hl.set_requester_conn_ctx(fd, 0, 0, None, None))?;
    fails("responder", hl.set_responder_conn_ctx(fd, 0, 0, None))?;
    fails("queue", hl.nic_cq_create(fd, 1, None))?;
    fails("wait", hl.nic_cq_wait(fd, 0, None, None, None, 0))?;
    fails("poll", hl.nic_eq_poll(fd, 0, None))?;
    fails("ccq", hl.nic_user_ccq_set(fd, None, None))?;
    fails("cq id", hl.nic_user_cq_id_alloc(fd, None, None))?;
    fails("cq set", hl.nic_user_cq_id_set(fd, None, None))?;
    fails("cq unset", hl.nic_user_cq_id_unset(fd, None))?;
    fails("fifo", hl.nic_alloc_user_db_fifo(fd, 0, None))?;
    fails("fifo set", hl.nic_user_db_fifo_set(fd, None, None))?;
    fails("encapsulation", hl.nic_user_encap_alloc(fd, 0, None))?;
    fails("encapsulation set", hl.nic_user_encap_set(fd, None))?;
    fails("parameters", hl.nic_user_get_app_params(fd, 0, None))?;
    fails("parameters set", hl.nic_user_set_app_params(fd, 0, None))?;
    fails("work queues", hl.nic_wq_arr_set(fd, None, None))?;
    fails("dump", hl.nic_dump_qp(fd, 0, 0, 0, ptr::null_mut(), 0))
}
