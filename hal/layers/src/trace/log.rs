//! Operations as lines of the program's log.
//!
//! The target is `gaudi::operation`, the level `INFO`: name, answer or errno, and duration. With
//! `DEBUG` the line has the request. The code that writes the packets of a submission logs them at
//! `TRACE`.

use std::sync::Arc;
use std::time::Duration;

use gaudi_seam::{Error, Node, SharedIo};
use tracing::Level;

use super::fields::{Fields, log_line};
use super::{Output, TraceLayer, kind_name};
use crate::time::Time;

const TARGET: &str = "gaudi::operation";

/// Wraps `io` in a layer that logs each operation if the program's log enables it. Otherwise
/// returns `io`.
pub(crate) fn over(io: SharedIo, time: &Arc<dyn Time>) -> SharedIo {
    if !tracing::enabled!(target: TARGET, Level::INFO) {
        return io;
    }
    let node = io.node();
    let kind = kind_name(node);
    tracing::info!(target: TARGET, "{}: open {} ({kind} node, {})", node.name, node.device, node.era);
    Arc::new(TraceLayer::with_output(io, Output::Log, Arc::clone(time)))
}

pub(super) fn wants_requests() -> bool {
    tracing::enabled!(target: TARGET, Level::DEBUG)
}

/// Logs an operation that ended.
pub(super) fn operation(
    node: &Node,
    name: &str,
    request: Option<&Fields>,
    outcome: Result<Fields, &Error>,
    duration_ns: u64,
) {
    let request = request.map_or_else(String::new, |fields| format!(" {}", log_line(fields)));
    let outcome = match outcome {
        Ok(answer) if answer.is_empty() => "0".to_owned(),
        Ok(answer) => log_line(&answer),
        Err(error) => format!("-1 {error}"),
    };
    let took = Duration::from_nanos(duration_ns);
    tracing::info!(target: TARGET, "{}: {name}{request} = {outcome} <{took:?}>", node.name);
}

pub(super) fn close(node: &Node, operations: u64) {
    tracing::info!(target: TARGET, "{}: close after {operations} operations", node.name);
}
