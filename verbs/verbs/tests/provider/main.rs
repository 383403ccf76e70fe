//! What the safe layer asks of a provider, and what it keeps from it.

#![expect(
    unsafe_code,
    reason = "registering host memory is a promise, also to a provider that moves nothing"
)]

mod fake;

use std::sync::Arc;

use gaudi_seam::{ErrorKind, RawMapping, Result};
use gaudi_verbs::provider::MwType;
use gaudi_verbs::{Access, Context, Cq, Mr, Pd, Qp, QpInit};

use fake::Fake;

const ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::MW_BIND);

struct Node {
    qp: Qp,
    cq: Cq,
    mr: Mr,
    pd: Pd,
    context: Context,
    nic: Arc<Fake>,
}

fn region(pd: &Pd) -> Mr {
    let memory = Arc::new(RawMapping::anonymous(4096, false).unwrap());
    pd.reg_mapping(memory, ACCESS).unwrap()
}

fn node_of(nic: Arc<Fake>) -> Node {
    let context = Context::open(nic.clone()).unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(16).unwrap();
    Node {
        qp: pd.create_qp(&QpInit::new(&cq)).unwrap(),
        mr: region(&pd),
        cq,
        pd,
        context,
        nic,
    }
}

fn node() -> Node {
    node_of(Fake::new(16, 16))
}

/// The answer of a call that must be refused before the provider hears of it.
fn refused<T>(answer: Result<T>) -> String {
    match answer {
        Ok(_) => panic!("it is refused"),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            error.to_string()
        }
    }
}

#[test]
fn a_bind_takes_window_and_region_of_its_own_domain_only() {
    let (mut a, b) = (node(), node());
    let beside = a.context.alloc_pd().unwrap();
    let mut own = a.pd.alloc_mw(MwType::Type2).unwrap();
    for pd in [&b.pd, &beside] {
        let mut window = pd.alloc_mw(MwType::Type2).unwrap();
        let foreign = region(pd);
        let bind =
            a.qp.post_send(1)
                .bind_mw(&mut window, &a.mr, 0, 8, Access::REMOTE_WRITE);
        let error = refused(bind.post());
        assert!(error.contains("window"), "{error}");
        let bind =
            a.qp.post_send(1)
                .bind_mw(&mut own, &foreign, 0, 8, Access::REMOTE_WRITE);
        let error = refused(bind.post());
        assert!(error.contains("region"), "{error}");
        assert_eq!(window.remote(), None, "nothing was bound");
    }
    assert!(a.nic.noted().sends.is_empty(), "the provider heard of none");
    let key = own.rkey();
    let bind =
        a.qp.post_send(1)
            .bind_mw(&mut own, &a.mr, 0, 8, Access::REMOTE_WRITE);
    bind.post().unwrap();
    assert_ne!(own.rkey(), key, "its own is bound");
}
