//! Engines as the driver names them: numbers in its answers, and commands to them.

use std::fmt::Write as _;

use gaudi_seam::{CsArgument, Engine, Error, Operation, QueueId, Result, rules};
use gaudi_spec::Asic;
use gaudi_spec::asic::{QueueEngine, QueueRow};
use gaudi_uapi::cs::EngineCommand;

const OP: Operation = Operation::Submit;

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

/// Every queue manager's engine and whether it is idle, for people (`HL_INFO_ENGINE_STATUS`). The
/// driver's own tables show registers, which an engine does not have to have.
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

/// Commands to engine cores and engines (command_submission.c `cs_ioctl_engine_cores`,
/// `cs_ioctl_engines`, gaudi2.c `gaudi2_set_engines`).
pub(crate) fn command(asic: &Asic, argument: CsArgument<'_>) -> Result<()> {
    let invalid =
        |rule, seen: &dyn std::fmt::Display, wanted: &str| Err(Error::from_rule(OP, rule).saw(seen, wanted));
    let number = |rule, ids: &[u32], most: u32| {
        let fits = !ids.is_empty() && u32::try_from(ids.len()).is_ok_and(|len| len <= most);
        if fits {
            return Ok(());
        }
        invalid(rule, &ids.len(), &format!("1 to {most}"))
    };
    match argument {
        CsArgument::EngineCores { cores, command } => {
            number(&rules::engines::CORES_COUNT, cores, asic.engines.cores)?;
            match command {
                // Cores that are not there are passed over, and those that are there run nothing
                // here.
                EngineCommand::CORE_HALT | EngineCommand::CORE_RUN => Ok(()),
                other => invalid(&rules::engines::CORES_COMMAND, &other, "CORE_HALT or CORE_RUN"),
            }
        }
        CsArgument::Engines { engines, command } => {
            if command.0 > EngineCommand::RESUME.0 {
                return invalid(&rules::engines::UNKNOWN_COMMAND, &command, "0 to 4");
            }
            let to_cores = [EngineCommand::CORE_HALT, EngineCommand::CORE_RUN].contains(&command);
            number(
                &rules::engines::COUNT,
                engines,
                if to_cores {
                    asic.engines.cores
                } else {
                    asic.engines.count
                },
            )?;
            if to_cores {
                return Ok(());
            }
            if ![EngineCommand::STALL, EngineCommand::RESUME].contains(&command) {
                return invalid(&rules::engines::COMMAND_ZERO, &command, "1 to 4");
            }
            // The driver has stalled those before the one that it refuses.
            engines
                .iter()
                .try_for_each(|&engine| set_mode(asic, engine, command))
        }
        _ => Ok(()),
    }
}

fn set_mode(asic: &Asic, engine: u32, command: EngineCommand) -> Result<()> {
    let Some(kind) = (asic.engines.stallable)(engine) else {
        return Err(Error::from_rule(OP, &rules::engines::STALL)
            .saw(engine, "the number of a TPC, an MME or an EDMA"));
    };
    if command == EngineCommand::STALL && kind == QueueEngine::Edma {
        // TPCs and MMEs execute nothing here, so that a stall of one cannot be seen; of an EDMA it
        // can.
        return Err(Error::unsupported(
            "HL_CS_FLAGS_ENGINES_COMMAND",
            "the mock's DMA engines cannot be stalled",
        ));
    }
    Ok(())
}
