//! Engines as the driver names them: numbers in its answers and in the events of its firmware.

use std::fmt::Write as _;

use gaudi_model::Chip;
use gaudi_seam::{CsArgument, Errno, Error, Result};
use gaudi_spec::asic::{QueueEngine, QueueId, QueueRow};
use gaudi_spec::gaudi2::{self, block, queue};
use gaudi_uapi::cs::EngineCommand;
use gaudi_uapi::engine::Gaudi2EngineId as Id;

use crate::open::Device;

/// Engine numbers from one die core to the next.
const DCORE: u32 = Id::DCORE1_ENGINE_ID_EDMA_0.0 - Id::DCORE0_ENGINE_ID_EDMA_0.0;
const TPCS: u32 = 6;
/// What an event tells whose engine has no number (gaudi2.c:10139).
pub(crate) const NO_ENGINE: u16 = u16::MAX;

/// The number of an engine (uapi `enum gaudi2_engine_id`); `None` for the management processor.
pub(crate) fn id(row: &QueueRow) -> Option<u32> {
    let nth = u32::from(row.instance);
    Some(match row.engine {
        QueueEngine::Pdma => Id::ENGINE_ID_PDMA_0.0 + nth,
        QueueEngine::Edma => Id::DCORE0_ENGINE_ID_EDMA_0.0 + nth / 2 * DCORE + nth % 2,
        QueueEngine::Mme => Id::DCORE0_ENGINE_ID_MME.0 + nth * DCORE,
        QueueEngine::Tpc if nth == 4 * TPCS => Id::DCORE0_ENGINE_ID_TPC_6.0,
        QueueEngine::Tpc => Id::DCORE0_ENGINE_ID_TPC_0.0 + nth / TPCS * DCORE + nth % TPCS,
        QueueEngine::Nic => Id::ENGINE_ID_NIC0_0.0 + nth,
        QueueEngine::Rotator => Id::ENGINE_ID_ROT_0.0 + nth,
        _ => return None,
    })
}

/// The event by which firmware tells an error of an engine's queue manager (gaudi2_async_events.h `GAUDI2_EVENT_*_QM`).
pub(crate) fn qman_event(row: &QueueRow) -> Option<u16> {
    let nth = u16::from(row.instance);
    Some(match row.engine {
        QueueEngine::Pdma => 1244 + nth,
        // HDMA 2, 3, 0, 1, 6, 7, 4, 5 in this order.
        QueueEngine::Edma => 1236 + (nth ^ 2),
        QueueEngine::Mme => 1232 + nth,
        QueueEngine::Tpc => 1206 + nth,
        QueueEngine::Rotator => 1249 + nth,
        _ => return None,
    })
}

/// One row a queue manager.
fn qmans() -> impl Iterator<Item = QueueRow> {
    (0..queue::CPU.0)
        .step_by(queue::STREAMS as usize)
        .filter_map(|queue| (gaudi2::ASIC.queue)(QueueId(queue)))
}

fn is_busy(chip: &Chip, row: &QueueRow) -> bool {
    (row.id.0..row.id.0 + queue::STREAMS).any(|queue| !chip.queue_is_idle(QueueId(queue)))
}

/// The engines that have work, a bit each by number.
pub(crate) fn busy(chip: &Chip) -> u128 {
    qmans()
        .filter(|row| is_busy(chip, row))
        .filter_map(|row| id(&row))
        .fold(0, |mask, id| mask | 1 << id)
}

/// Every queue manager's engine and whether it is idle, for people (`HL_INFO_ENGINE_STATUS`). The driver's own tables show registers,
/// which the model of a chip does not have.
pub(crate) fn status(chip: &Chip) -> String {
    let mut text = String::from("engine      id  idle\n");
    for row in qmans() {
        let kind = match row.engine {
            QueueEngine::Pdma => "PDMA",
            QueueEngine::Edma => "EDMA",
            QueueEngine::Mme => "MME",
            QueueEngine::Tpc => "TPC",
            QueueEngine::Nic => "NIC",
            _ => "ROT",
        };
        let (id, idle) = (
            id(&row).unwrap_or_default(),
            if is_busy(chip, &row) { "N" } else { "Y" },
        );
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{kind:4} {:<5} {id:3}  {idle}", row.instance);
    }
    text
}

impl Device {
    /// Commands to engine cores and engines (command_submission.c:2463, :2504, gaudi2.c:5123).
    pub(crate) fn command_engines(&self, argument: CsArgument<'_>) -> Result<()> {
        const OP: &str = "HL_IOCTL_CS";
        let invalid = |why: &str, seen: &dyn std::fmt::Display, wanted: &str| {
            Err(self
                .refusal(OP, Errno::EINVAL)
                .because(why.to_owned())
                .saw(seen, wanted))
        };
        let number = |ids: &[u32], most: u32| {
            let fits = !ids.is_empty() && u32::try_from(ids.len()).is_ok_and(|len| len <= most);
            if fits {
                return Ok(());
            }
            invalid(
                "so many engines cannot be named",
                &ids.len(),
                &format!("1 to {most}"),
            )
        };
        match argument {
            CsArgument::EngineCores { cores, command } => {
                number(cores, block::ARCS)?;
                match command {
                    // Cores that are not there are passed over, and those that are there run nothing here.
                    EngineCommand::CORE_HALT | EngineCommand::CORE_RUN => Ok(()),
                    other => invalid("that is no command to cores", &other, "CORE_HALT or CORE_RUN"),
                }
            }
            CsArgument::Engines { engines, command } => {
                if command.0 > EngineCommand::RESUME.0 {
                    return invalid("there is no such command", &command, "0 to 4");
                }
                let to_cores = [EngineCommand::CORE_HALT, EngineCommand::CORE_RUN].contains(&command);
                number(engines, if to_cores { block::ARCS } else { Id::SIZE })?;
                if to_cores {
                    return Ok(());
                }
                if ![EngineCommand::STALL, EngineCommand::RESUME].contains(&command) {
                    return invalid("there is no such command", &command, "1 to 4");
                }
                // The driver has stalled those before the one that it refuses.
                match engines
                    .iter()
                    .find_map(|&engine| self.set_mode(engine, command).err())
                {
                    Some(error) => Err(error),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn set_mode(&self, engine: u32, command: EngineCommand) -> Result<()> {
        if !Id(engine).has_modes() {
            return Err(self
                .refusal("HL_IOCTL_CS", Errno::EINVAL)
                .because("this engine cannot be stalled")
                .saw(engine, "the number of a TPC, an MME or an EDMA"));
        }
        if command == EngineCommand::STALL && engine % DCORE < Id::DCORE0_ENGINE_ID_MME.0 {
            // Of TPCs and MMEs the model executes nothing, so that a stall of one cannot be seen; of this one it would be.
            return Err(Error::unsupported(
                "HL_CS_FLAGS_ENGINES_COMMAND",
                "the mock's DMA engines cannot be stalled",
            )
            .on(self.id));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_have_the_numbers_of_the_header() {
        let of = |queue: QueueId| id(&(gaudi2::ASIC.queue)(queue).unwrap());
        assert_eq!(of(queue::PDMA_1_0), Some(Id::ENGINE_ID_PDMA_1.0));
        assert_eq!(
            of(queue::edma(7, 0).unwrap()),
            Some(Id::DCORE3_ENGINE_ID_EDMA_1.0)
        );
        assert_eq!(of(QueueId(92)), Some(Id::DCORE2_ENGINE_ID_MME.0));
        assert_eq!(of(QueueId(20 + 6 * 4)), Some(Id::DCORE0_ENGINE_ID_TPC_6.0));
        assert_eq!(of(QueueId(132 + 5 * 4)), Some(Id::DCORE3_ENGINE_ID_TPC_5.0));
        assert_eq!(of(QueueId(256)), Some(Id::ENGINE_ID_ROT_1.0));
        assert_eq!(of(queue::CPU), None, "the management processor is no engine");
        let mut all: Vec<_> = qmans().filter_map(|row| id(&row)).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 65, "every queue manager has a number of its own");
    }

    #[test]
    fn queue_managers_have_the_events_of_the_header() {
        let of = |queue: QueueId| qman_event(&(gaudi2::ASIC.queue)(queue).unwrap());
        // GAUDI2_EVENT_HDMA0_QM … HDMA7_QM
        let edma: Vec<_> = (0..8)
            .map(|nth| of(queue::edma(nth, 0).unwrap()).unwrap())
            .collect();
        assert_eq!(edma, [1238, 1239, 1236, 1237, 1242, 1243, 1240, 1241]);
        assert_eq!(of(queue::PDMA_1_0), Some(1245));
        assert_eq!(of(QueueId(156)), None, "NICs tell theirs in another way");
    }
}
