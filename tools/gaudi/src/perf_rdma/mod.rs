//! `gaudi perf write|read|send|atomic`: RDMA between two nodes, as perftest measures it.
//!
//! The connecting end measures, the listening end serves; both print the result. Control messages
//! use a socket; all measured traffic uses the NICs.

mod client;
mod loops;
mod message;
mod node;
mod op;
mod plan;
mod report;
mod samples;
mod serve;
mod session;
mod staged;
mod watch;
mod wire;

use std::os::unix::net::UnixStream;

use anyhow::{Context as _, Result};
use gaudi::DeviceSpec;

use crate::args_rdma::{Memory, PerfRdma};
use crate::common::{Common, Takes};
use crate::layers::{nic_rules, without_nic_faults};
use crate::nic::of_one_kind;
use crate::output::Output;
use crate::peer::{Peer, common_of_peer};
pub(crate) use op::Op;
use plan::Plan;
pub(crate) use samples::Samples;
use session::Session;
use wire::Wire;

pub(crate) fn run(common: &Common, perf: &PerfRdma, op: Op, output: &mut Output) -> Result<u8> {
    if perf.serve {
        return serve::as_child(common, perf);
    }
    let plan = Plan::new(op, perf)?;
    if let Some(address) = perf.listen {
        return serve::listen(common, perf, op, address, output);
    }
    if plan.memory == Memory::Host {
        without_nic_faults(common)?.check(&format!("perf {} --memory host", op.name()), Takes::Nothing)?;
    }
    match &perf.connect {
        Some(address) => {
            let wire = Wire::connect(address, perf.timeout)?;
            client::run(Session::new(common, perf, wire)?, &plan, output)
        }
        None => {
            of_one_kind(&perf.nic, perf.peer_nic.as_ref().unwrap_or(&perf.nic))?;
            let (ours, theirs) = UnixStream::pair().context("joining the nodes")?;
            let peer = spawn_peer(common, perf, &plan, theirs)?;
            let session = Session::new(common, perf, Wire::Parent(ours))?;
            peer.finish("the peer", client::run(session, &plan, output))
        }
    }
}

/// Returns the device of the peer that this process starts, with layers of its own: it is another
/// process.
fn of_peer(common: &Common) -> Result<DeviceSpec> {
    let devices = common.devices.get(1).or(common.devices.first()).cloned();
    node::device_spec(&Common {
        devices: devices.into_iter().collect(),
        ..common_of_peer(common, ".peer")
    })
}

/// Starts the process that serves.
fn spawn_peer(common: &Common, perf: &PerfRdma, plan: &Plan, socket: UnixStream) -> Result<Peer> {
    let device = match plan.memory {
        Memory::Device => Some(of_peer(common)?.to_string()),
        Memory::Host => None,
    };
    let nic = perf.peer_nic.as_ref().unwrap_or(&perf.nic).clone();
    let nic = nic.with_faults(&nic_rules(common)?)?;
    Peer::spawn(socket, &["perf", plan.op.name(), "--serve"], common, |command| {
        command.args(["--nic", &nic.to_string()]);
        if let Some(index) = perf.gid_index {
            command.arg("--gid-index").arg(index.to_string());
        }
        command
            .arg("--timeout")
            .arg(perf.timeout.as_secs_f64().to_string());
        if let Some(device) = device {
            command.arg("--device").arg(device);
            if common.on_hardware {
                command.arg("--on-hardware");
            }
        }
    })
}
