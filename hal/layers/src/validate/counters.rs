//! Checks of counters, of timestamps, and of commands to engines.

use gaudi_seam::{CqCounter, CsArgument, InterruptWait, InterruptWord, TimestampRegistration, TsHandle};
use gaudi_spec::gaudi2::block::ARCS;
use gaudi_uapi::cs::EngineCommand;
use gaudi_uapi::engine::Gaudi2EngineId;
use gaudi_uapi::limits::TS_MAX_ELEMENTS_NUM;

use super::ledger::{Ledger, Misuse};

impl Ledger {
    pub(super) fn check_ts_alloc(elements: u32) -> Option<Misuse> {
        // memory.c:hl_ts_alloc_buf
        (elements > TS_MAX_ELEMENTS_NUM).then(|| {
            Misuse::invalid("a buffer cannot have that many timestamps".to_owned())
                .saw(elements, format!("at most {TS_MAX_ELEMENTS_NUM}"))
        })
    }

    /// A timestamps buffer lives until the device is closed: no operation destroys it.
    pub(super) fn ts_alloc(&mut self, elements: u32, handle: TsHandle) {
        self.timestamps.insert(handle.0, elements);
    }

    fn check_counter(&self, counter: CqCounter) -> Option<Misuse> {
        let Some(whole) = self.whole_buffer(counter.handle) else {
            return self.check_cb(counter.handle, false);
        };
        // command_submission.c:_hl_interrupt_wait_ioctl
        (counter.offset >= whole / 8).then(|| {
            Misuse::invalid(format!(
                "counter {} lies behind the end of command buffer {:#x}",
                counter.offset, counter.handle.0
            ))
            .saw(counter.offset, format!("below {}", whole / 8))
            .helped_by("a counter is named by its index, not by its first byte")
        })
    }

    pub(super) fn check_wait_interrupt(&self, request: &InterruptWait) -> Option<Misuse> {
        match request.word {
            InterruptWord::User(_) => None,
            InterruptWord::KernelCq(counter) => self.check_counter(counter),
        }
    }

    pub(super) fn check_register_timestamp(&self, request: &TimestampRegistration) -> Option<Misuse> {
        let counter = self.check_counter(request.counter);
        if counter.is_some() {
            return counter;
        }
        match self.timestamps.get(&request.buffer.0) {
            // command_submission.c:validate_and_get_ts_record
            Some(&elements) if request.index >= elements.into() => Some(
                Misuse::invalid(format!(
                    "timestamp {} lies behind the end of timestamps buffer {:#x}",
                    request.index, request.buffer.0
                ))
                .saw(request.index, format!("below {elements}")),
            ),
            Some(_) => None,
            None => Some(
                Misuse::invalid(format!(
                    "no timestamps buffer {:#x} was made here",
                    request.buffer.0
                ))
                .if_refused(),
            ),
        }
    }

    /// Commands to Gaudi2's engines (command_submission.c:cs_ioctl_engines).
    pub(super) fn check_engines(argument: CsArgument<'_>) -> Option<Misuse> {
        let (ids, known, command) = match argument {
            CsArgument::EngineCores { cores, command } => (
                cores,
                EngineCommand::CORE_HALT.0..=EngineCommand::CORE_RUN.0,
                command,
            ),
            CsArgument::Engines { engines, command } => (
                engines,
                EngineCommand::CORE_HALT.0..=EngineCommand::RESUME.0,
                command,
            ),
            _ => return None,
        };
        if ids.is_empty() {
            return Some(Misuse::invalid("a command to engines names none".to_owned()).saw(0, "at least 1"));
        }
        if !known.contains(&command.0) {
            return Some(
                Misuse::invalid(format!("{command} is no command to them"))
                    .saw(command.0, format!("{} to {}", known.start(), known.end())),
            );
        }
        let to_cores = [EngineCommand::CORE_HALT, EngineCommand::CORE_RUN].contains(&command);
        let most = if to_cores { ARCS } else { Gaudi2EngineId::SIZE };
        if ids.len() > most as usize {
            let what = if to_cores { "cores" } else { "engines" };
            return Some(
                Misuse::invalid(format!("the chip has fewer {what} than the command names"))
                    .saw(ids.len(), format!("1 to {most}")),
            );
        }
        // The driver skips missing cores.
        let wrong = ids
            .iter()
            .find(|&&id| !to_cores && !Gaudi2EngineId(id).has_modes());
        wrong.map(|&id| {
            Misuse::invalid(format!("{command} is for engines that can stall"))
                .saw(Gaudi2EngineId(id), "a TPC, an MME or an EDMA")
        })
    }
}
