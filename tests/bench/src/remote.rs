//! Transfers between two nodes: by dma-buf beside staged, and staged beside the same steps one
//! after the other.

use std::cell::RefCell;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use gaudi_device::{Buffer, Deadline, Device};
use gaudi_remote::{Endpoint, EndpointOptions, Nic, Policy, Remote, Rights};
use gaudi_softnic::{SoftNic, SoftNicConfig};
use gaudi_verbs::Context;

use crate::harness::{Goal, Made, Row, Work};

const BYTES: u64 = 16 << 20;
/// What an engine takes for a chunk in the rows that say so: as long as the software NIC, about,
/// and none of it the processor's.
const ENGINE: &str = "+fault=submit:delay=150us";

/// Two connected nodes. The endpoints stand before what they use.
struct Nodes {
    asking: Endpoint,
    serving: Endpoint,
    remote: Remote,
    ours: Buffer,
    _theirs: Buffer,
    devices: [Device; 2],
}

impl Nodes {
    fn new(name: &str, layer: &str, policy: Policy, depth: u32) -> Made<Self> {
        let mut options = EndpointOptions::default();
        options.policy = policy;
        options.depth = depth;
        let open = |end: &str| -> Made<Device> {
            Ok(Device::open(
                &format!("mock:gaudi2?name=bench-remote-{name}-{end}{layer}").parse()?,
            )?)
        };
        let devices = [open("a")?, open("b")?];
        let (ours, theirs) = (
            devices[0].alloc_exclusive(BYTES)?,
            devices[1].alloc_exclusive(BYTES)?,
        );
        for (device, buffer) in [(&devices[0], &ours), (&devices[1], &theirs)] {
            device.fill(buffer, 0x5a)?.wait(Deadline::NEVER)?;
        }
        let (nic_a, nic_b) = SoftNic::pair(SoftNicConfig::default())?;
        let (stream_a, stream_b) = UnixStream::pair()?;
        let (nic_a, nic_b) = (
            Nic::new(&Context::open(nic_a)?)?,
            Nic::new(&Context::open(nic_b)?)?,
        );
        let (mut asking, mut serving) = std::thread::scope(|scope| -> Made<_> {
            let their = options.clone();
            let device = &devices[1];
            let serving = scope.spawn(move || Endpoint::over(stream_b, &nic_b, Some(device), their));
            let asking = Endpoint::over(stream_a, &nic_a, Some(&devices[0]), options)?;
            Ok((asking, serving.join().map_err(|_| "a node panicked")??))
        })?;
        serving.offer(&theirs, Rights::BOTH)?;
        let remote = asking.receive_offer(Duration::from_secs(10))?;
        Ok(Self {
            asking,
            serving,
            remote,
            ours,
            _theirs: theirs,
            devices,
        })
    }

    fn once(&mut self, put: bool) -> gaudi_remote::Result<()> {
        let transfer = if put {
            self.asking.put(&self.ours, &self.remote)?
        } else {
            self.asking.get(&self.ours, &self.remote)?
        };
        self.asking.wait(transfer, Deadline::NEVER).map(drop)
    }

    fn note(&self) -> String {
        let (a, b) = (self.asking.nic().stats(), self.serving.nic().stats());
        let wire = (a.nic_put_bytes + a.nic_got_bytes).max(1);
        let per = |bytes: u64| bytes as f64 / wire as f64;
        let processor: u64 = self
            .devices
            .iter()
            .map(|device| device.stats().cpu_copied_bytes)
            .sum();
        format!(
            "bytes of each byte: {} copied by the processor, {} by engines (mock)",
            per(a.cpu_copied_bytes + b.cpu_copied_bytes + processor),
            per(a.engine_bytes + b.engine_bytes),
        )
    }
}

fn work(nodes: &Rc<RefCell<Nodes>>, put: bool) -> Work<'static> {
    let nodes = Rc::clone(nodes);
    Box::new(move |count| {
        for _ in 0..count {
            let done = nodes.borrow_mut().once(put);
            assert!(done.is_ok(), "a transfer ends well: {done:?}");
        }
    })
}

/// Returns the rows of `gaudi-remote`.
///
/// # Errors
/// The library's first error.
pub fn remote() -> Made<Vec<Row<'static>>> {
    let make = |name: &str, layer: &str, policy, depth| -> Made<Rc<RefCell<Nodes>>> {
        Ok(Rc::new(RefCell::new(Nodes::new(name, layer, policy, depth)?)))
    };
    let depth = EndpointOptions::default().depth;
    let mut rows = Vec::new();
    for (put, what) in [(true, "put"), (false, "get")] {
        let row = |name: String, peer: &str, ours: &Rc<RefCell<Nodes>>, theirs, goal| {
            let counted = Rc::clone(ours);
            Row {
                name,
                peer: peer.into(),
                ours: work(ours, put),
                theirs: Ok(theirs),
                probe: None,
                laps: None,
                bytes: BYTES,
                goal: Goal::AtLeast(goal),
                note: Box::new(move || counted.borrow().note()),
            }
        };
        let direct = make(&format!("{what}-direct"), "", Policy::Require, depth)?;
        let staged = make(&format!("{what}-staged"), "", Policy::Never, depth)?;
        rows.push(row(
            format!("{what} of 16 MiB from dma-buf to dma-buf (mock, softnic)"),
            "the same bytes staged",
            &direct,
            work(&staged, put),
            1.0,
        ));
        // Where the engines are this processor too, two processors that are busy already have
        // nothing to overlap with: at most 2, and nothing on a loaded machine: there it must only
        // cost little. The goal is for engines with a time of their own, as a card's are.
        for (layer, engines, goal) in [
            ("", "engines that are this processor", 0.8),
            (ENGINE, "engines of 150 µs a chunk", 1.7),
        ] {
            let name = |depth: u32| format!("{what}-{depth}-{}", layer.len());
            let many = make(&name(depth), layer, Policy::Never, depth)?;
            let one = make(&name(1), layer, Policy::Never, 1)?;
            rows.push(row(
                format!("staged {what} of 16 MiB, {depth} chunks in flight, {engines} (mock, softnic)"),
                "the same steps one after the other",
                &many,
                work(&one, put),
                goal,
            ));
        }
    }
    Ok(rows)
}
