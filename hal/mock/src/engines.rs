//! Engines by the driver's numbers, and commands to them.

use std::fmt::Write as _;

use gaudi_seam::{CsArgument, Engine, Error, QueueId, Result};
use gaudi_spec::Asic;
use gaudi_spec::asic::{QueueEngine, QueueRow};
use gaudi_uapi::cs::EngineCommand;

/// The first row of each queue manager, and the number of its engine.
fn qmans(asic: &'static Asic) -> impl Iterator<Item = (QueueRow, u32)> {
    (0..asic.queue_count)
        .step_by(asic.queue_streams as usize)
        .filter_map(|queue| (asic.queue)(QueueId(queue)))
        .filter_map(|row| Some((row, (asic.engines.id)(&row)?)))
}

fn is_busy(engine: &dyn Engine, row: &QueueRow) -> bool {
    (row.id.0..row.id.0 + engine.asic().queue_streams).any(|queue| !engine.is_idle(QueueId(queue)))
}

/// The engines that have work, a bit for each number.
pub(crate) fn busy(engine: &dyn Engine) -> u128 {
    qmans(engine.asic())
        .filter(|(row, _)| is_busy(engine, row))
        .fold(0, |mask, (_, id)| mask | 1 << id)
}

/// Returns a table of the queue managers' engines and whether each is idle
/// (`HL_INFO_ENGINE_STATUS`). The driver's own tables print registers, which an engine may lack.
pub(crate) fn status(engine: &dyn Engine) -> String {
    let mut text = String::from("engine      id  idle\n");
    for (row, id) in qmans(engine.asic()) {
        let kind = match row.engine {
            QueueEngine::Pdma => "PDMA",
            QueueEngine::Edma => "EDMA",
            QueueEngine::Mme => "MME",
            QueueEngine::Tpc => "TPC",
            QueueEngine::Nic => "NIC",
            _ => "ROT",
        };
        let idle = if is_busy(engine, &row) { "N" } else { "Y" };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{kind:4} {:<5} {id:3}  {idle}", row.instance);
    }
    text
}

/// Executes a valid command to engine cores or engines (command_submission.c
/// `cs_ioctl_engine_cores`, `cs_ioctl_engines`, gaudi2.c `gaudi2_set_engines`). Cores, TPCs and
/// MMEs execute nothing here, so a stall has an effect on EDMAs only.
pub(crate) fn command(asic: &Asic, argument: CsArgument<'_>) -> Result<()> {
    let CsArgument::Engines {
        engines,
        command: EngineCommand::STALL,
    } = argument
    else {
        return Ok(());
    };
    let is_edma = |&engine: &u32| (asic.engines.stallable)(engine) == Some(QueueEngine::Edma);
    match engines.iter().find(|engine| is_edma(engine)) {
        Some(_) => Err(Error::unsupported(
            "HL_CS_FLAGS_ENGINES_COMMAND",
            "the mock's DMA engines cannot be stalled",
        )),
        None => Ok(()),
    }
}
