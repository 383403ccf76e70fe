//! How two nodes come together over TCP.

use std::net::TcpListener;
use std::time::Duration;

use gaudi_remote::{Endpoint, ErrorKind, Nic, Options};
use gaudi_softnic::{SoftNic, SoftNicConfig};
use gaudi_verbs::Context;

fn nics() -> [Nic; 2] {
    let (a, b) = SoftNic::pair(SoftNicConfig::default()).expect("two NICs");
    [a, b].map(|nic| Nic::new(&Context::open(nic).expect("open")).expect("a NIC"))
}

#[test]
fn a_timeout_beyond_all_clocks_is_no_end() {
    let mut options = Options::default();
    options.connect_timeout = Duration::MAX;
    let [nic, _other] = nics();
    // A port that was free a moment ago.
    let address = TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("an address");
    let error = Endpoint::connect(address, &nic, None, options.clone()).expect_err("nobody listens");
    assert_ne!(error.kind(), ErrorKind::TimedOut, "{error}");
}
