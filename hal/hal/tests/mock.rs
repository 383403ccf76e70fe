//! The mock through the opener, chosen as a program chooses it.

#![cfg(feature = "mock")]

use gaudi_hal::{Environment, ErrorKind, choose, control, list, mock_ledger, open};
use gaudi_seam::{BackendSpec, NodeKind};

#[test]
fn selected_mock_opens_once_for_compute() {
    let environment = Environment {
        device: Some("mock:gaudi2?name=hal".into()),
        mapping_table: None,
        ..Environment::default()
    };
    let spec = choose(None, &environment).expect("the environment chooses");
    assert_eq!(mock_ledger(&spec), None, "it is not open yet");
    let device = open(&spec).expect("the compute node opens");
    assert_eq!(device.node().kind, NodeKind::Compute);
    assert_eq!(
        open(&spec).err().map(|error| error.kind()),
        Some(ErrorKind::Busy),
        "one user at a time"
    );
    assert_eq!(
        control(&spec).map(|io| io.node().kind),
        Ok(NodeKind::Control),
        "the control node does not disturb"
    );
    assert!(
        mock_ledger(&spec).is_some_and(|ledger| ledger.is_clean()),
        "an open device holds nothing yet"
    );
    assert!(
        list()
            .iter()
            .all(|listed| !matches!(listed.spec.backend, BackendSpec::Mock(_))),
        "a mock is no device of the machine"
    );
    drop(device);
    open(&spec).expect("and opens again");
}
