//! The verbs suite on real soft-RoCE through the real libibverbs: the same cases as on the software
//! NIC, a test a topic.

mod ibv;

use gaudi_dmabuf::DmaBuf;
use gaudi_lab::{kernel, rxe};
use gaudi_sys::dmabuf::{udmabuf_create, udmabuf_open};
use gaudi_sys::{Memfd, RawMapping};
use gaudi_verbs::Context;
use gaudi_verbs_conformance::{Dialect, DmaBufMemory, Feature, Fixture, cases, run_where};

/// Memory of this process behind a real dma-buf.
fn memory(len: u64) -> gaudi_seam::Result<DmaBufMemory> {
    let memory = Memfd::sparse(c"verbs", len).expect("a memfd");
    let device = udmabuf_open().expect("/dev/udmabuf is built in");
    let fd = udmabuf_create(&device, &memory, 0, len).expect("a dma-buf");
    Ok(DmaBufMemory {
        window: DmaBuf::from_fd(fd)?.whole()?,
        view: RawMapping::of_fd(&memory, 0, len as usize).expect("a mapping"),
    })
}

/// The NIC opened twice: its port reaches itself.
fn fixture() -> Fixture {
    let build = ibv::any();
    rxe::device(build, "rxe0", "eth0", "10.77.0.1");
    let open = || Context::open(gaudi_ibverbs::open("rxe0").expect("the NIC opens")).expect("a context");
    let fixture = Fixture::new("rxe0", open(), open(), Dialect::Rxe).lacking(
        Feature::ReceiveStates,
        "librxe puts a receive into shared memory in any state without a check",
    );
    let fixture = if kernel() < (7, 0) {
        fixture.lacking(
            Feature::AccessEvents,
            "soft-RoCE of 6.12 raises no IB_EVENT_QP_ACCESS_ERR (rxe_resp.c of 7.3 does)",
        )
    } else {
        fixture
    };
    match rxe::need() {
        None => fixture.with_dmabuf(memory),
        Some(need) => fixture.lacking(Feature::DmaBuf, need),
    }
}

fn topic(topic: &str) {
    if rxe::skips_verbs(topic) {
        return;
    }
    let report = run_where(&fixture(), |case| case.group == topic);
    print!("{report}");
    assert!(report.is_good(), "{report}");
}

macro_rules! topics {
    ($($name:ident $topic:literal,)*) => {
        const TOPICS: &[&str] = &[$($topic),*];

        $(
            #[test]
            #[ignore = "runs in a guest: cargo xtask lab test"]
            fn $name() {
                topic($topic);
            }
        )*
    };
}

topics! {
    operations_move_bytes_and_complete "operations",
    atomics_are_atomic "atomics",
    connections_go_through_their_states "connections",
    datagrams_go_to_whom_they_name "datagrams",
    errors_are_the_requesters_or_the_peers "errors",
    events_tell_what_happened "events",
    inline_data_needs_no_region "inline",
    limits_are_refused_beforehand "limits",
    regions_are_what_was_registered "regions",
    rights_are_what_was_given "rights",
    shared_receives_serve_many "shared receives",
    teardown_has_an_order "teardown",
    windows_open_and_close "windows",
}

/// A topic without a test here would be left out silently.
#[test]
fn every_topic_has_a_test() {
    for case in cases::all() {
        assert!(TOPICS.contains(&case.group), "{} has no test here", case.group);
    }
}
