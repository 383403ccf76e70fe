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
mod staged;
mod watch;
mod wire;

use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use gaudi::DeviceSpec;

use crate::args_rdma::{Memory, PerfRdma};
use crate::common::{Common, Takes};
use crate::exit::{Judged, Usage};
use crate::nic::SOFTNIC;
use crate::output::Output;
use crate::peer::Peer;
pub(crate) use op::Op;
use plan::Plan;
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
        common.check(&format!("perf {} --memory host", op.name()), Takes::Nothing)?;
    }
    match &perf.connect {
        Some(address) => {
            let wire = Wire::connect(address, perf.timeout)?;
            client::run(common, perf, &plan, wire, output)
        }
        None => {
            let peer_nic = perf.peer_nic.as_ref().unwrap_or(&perf.nic);
            if (perf.nic == SOFTNIC) != (peer_nic == SOFTNIC) {
                return Err(Usage(format!(
                    "both ends need a NIC of one kind, {SOFTNIC} or one of libibverbs: not {} and {peer_nic}",
                    perf.nic
                ))
                .into());
            }
            let (ours, theirs) = UnixStream::pair().context("joining the nodes")?;
            let mut peer = spawn_peer(common, perf, &plan, theirs)?;
            let done = client::run(common, perf, &plan, Wire::Unix(ours), output);
            let ended = peer.wait();
            done.map_err(|error| match ended {
                Some(how) if error.downcast_ref::<Judged>().is_none() => {
                    error.context(format!("the peer ended ({how})"))
                }
                _ => error,
            })
        }
    }
}

/// The device of the peer that this process starts, with layers of its own: it is another process.
fn of_peer(common: &Common) -> Result<DeviceSpec> {
    let trace = common.trace.as_ref().map(|file| {
        let mut name = file.clone().into_os_string();
        name.push(".peer");
        PathBuf::from(name)
    });
    let devices = common.devices.get(1).or(common.devices.first()).cloned();
    node::device_spec(&Common {
        trace,
        devices: devices.into_iter().collect(),
        ..common.clone()
    })
}

/// Starts the process that serves.
fn spawn_peer(common: &Common, perf: &PerfRdma, plan: &Plan, socket: UnixStream) -> Result<Peer> {
    let device = match plan.memory {
        Memory::Device => Some(of_peer(common)?.to_string()),
        Memory::Host => None,
    };
    Peer::spawn(socket, |command| {
        command.args(["perf", plan.op.name(), "--serve", "--nic"]);
        command.arg(perf.peer_nic.as_ref().unwrap_or(&perf.nic));
        if let Some(index) = perf.gid_index {
            command.arg("--gid-index").arg(index.to_string());
        }
        command.args(vec!["-v"; common.verbose.into()]);
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
