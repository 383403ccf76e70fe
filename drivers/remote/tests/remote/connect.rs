//! How two nodes come together over TCP.

use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use gaudi_remote::{Endpoint, EndpointOptions, ErrorKind, Nic};
use gaudi_softnic::{SoftNic, SoftNicConfig};
use gaudi_verbs::Context;
use nix::sys::socket::{getsockopt, sockopt};

fn nics() -> [Nic; 2] {
    let (a, b) = SoftNic::pair(SoftNicConfig::default()).expect("two NICs");
    [a, b].map(|nic| Nic::new(&Context::open(nic).expect("open")).expect("a NIC"))
}

#[test]
fn unrepresentable_timeout_never_expires() {
    let mut options = EndpointOptions::default();
    options.connect_timeout = Duration::MAX;
    let [nic, _other] = nics();
    // A port that was free a moment ago.
    let address = TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("an address");
    let error = Endpoint::connect(address, &nic, None, options.clone()).expect_err("no listener");
    assert_ne!(error.kind(), ErrorKind::TimedOut, "{error}");
}

/// A machine that loses power sends nothing: keepalive probes end every wait after 30 s.
#[test]
fn tcp_stream_reports_a_dead_peer() {
    let [nic_a, nic_b] = nics();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let ours = TcpStream::connect(address).expect("connected");
    let (theirs, _) = listener.accept().expect("accepted");
    let sockets = [&ours, &theirs].map(|stream| stream.try_clone().expect("a clone"));
    std::thread::scope(|scope| {
        let b = scope.spawn(|| Endpoint::over(theirs, &nic_b, None, EndpointOptions::default()));
        Endpoint::over(ours, &nic_a, None, EndpointOptions::default()).expect("node A");
        b.join().expect("no panic").expect("node B");
    });
    for socket in &sockets {
        assert_eq!(getsockopt(socket, sockopt::KeepAlive), Ok(true));
        let idle = getsockopt(socket, sockopt::TcpKeepIdle).expect("an option");
        let interval = getsockopt(socket, sockopt::TcpKeepInterval).expect("an option");
        let count = getsockopt(socket, sockopt::TcpKeepCount).expect("an option");
        assert_eq!(idle + interval * count, 30, "the documented seconds");
        assert_eq!(getsockopt(socket, sockopt::TcpUserTimeout), Ok(30_000));
        assert_eq!(getsockopt(socket, sockopt::TcpNoDelay), Ok(true));
    }
}
