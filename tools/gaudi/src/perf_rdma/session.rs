//! One end's options, and its connection to the peer.

use anyhow::Result;

use super::message::{Message, disagreement};
use super::node::Node;
use super::plan::Plan;
use super::wire::Wire;
use crate::args_rdma::PerfRdma;
use crate::common::Common;
use crate::control::{Control, Failure, out_of_step};

pub(super) struct Session<'a> {
    pub(super) common: &'a Common,
    pub(super) perf: &'a PerfRdma,
    pub(super) wire: Wire,
    pub(super) control: Control,
}

impl<'a> Session<'a> {
    pub(super) fn new(common: &'a Common, perf: &'a PerfRdma, wire: Wire) -> Result<Self> {
        let mut control = Control::new(wire.duplicate()?);
        control.set_timeout(perf.timeout);
        Ok(Self {
            common,
            perf,
            wire,
            control,
        })
    }

    /// Whether the NICs of both ends are software.
    pub(super) fn is_soft(&self) -> bool {
        self.perf.nic.is_soft()
    }

    /// Opens this end. Both ends call it at the same point: software NICs are joined by a cable.
    pub(super) fn open(&mut self, plan: &Plan) -> Result<Node> {
        let cable = match self.is_soft() {
            true => Some(self.wire.cable(&mut self.control, self.perf.timeout)?),
            false => None,
        };
        Node::open(self.common, self.perf, plan, cable)
    }

    pub(super) fn expect_ready(&mut self) -> Result<()> {
        match self.control.reply()? {
            Message::Ready => Ok(()),
            other => Err(out_of_step(&other)),
        }
    }

    /// Whether the received bytes, at the peer or here, are those that the other end sent.
    pub(super) fn compare(&mut self, node: &Node, at_peer: bool, bytes: u64) -> Result<bool> {
        let incoming = at_peer;
        self.control.send(&Message::Digest { incoming, bytes })?;
        match self.control.reply()? {
            Message::Digested(digest) => Ok(digest == node.digest(!incoming, bytes)?),
            other => Err(out_of_step(&other)),
        }
    }

    /// Ends the session with a usage error, at both ends.
    pub(super) fn refuse(&mut self, why: String) -> Result<()> {
        self.control.send(&Message::Refused(why.clone()))?;
        Err(disagreement(why).into())
    }

    /// Sends an error of this end to the peer, unless it is the peer's own, and returns the one
    /// that explains more.
    pub(super) fn report_failure<T>(&mut self, done: Result<T>) -> Result<T> {
        done.map_err(|error| {
            let error = self.control.explain_by_peer::<Message>(error);
            // The peer may be closed already.
            let _ = self.control.send(&Message::Failed(Failure::of(&error)));
            error
        })
    }
}
