//! `HL_IOCTL_DEBUG` (driver common/habanalabs_ioctl.c:1174, gaudi2/gaudi2_coresight.c): who may trace, and what is refused.
//!
//! The chip has no CoreSight: what is switched on stays on and traces nothing, and every counter reads as zero.

use gaudi_seam::{DebugRequest, DeviceVa, Errno, Error, Result};
use gaudi_spec::asic::VaRange;
use gaudi_spec::gaudi2;
use gaudi_uapi::debug::{DebugOp, HlDebugParamsEtr, HlDebugParamsSpmu};
use zerocopy::{FromBytes, IntoBytes};

use crate::open::Device;

const OP: &str = "HL_IOCTL_DEBUG";

/// Components of each kind, and those that the chip does not have: configuring them does nothing (gaudi2_coresight.c `debug_*_regs`).
const STMS: Components = Components(139, 91..93);
const ETFS: Components = Components(141, 91..93);
const FUNNELS: Components = Components(141, 90..92);
const BMONS: Components = Components(385, 276..280);
const SPMUS: Components = Components(137, 90..92);
/// Counters of an SPMU (gaudi2_coresight.c `SPMU_MAX_COUNTERS`).
const COUNTERS: u32 = 6;
/// The most that the driver can allocate at once for an answer (`KMALLOC_MAX_SIZE` of x86-64).
const MOST_OUTPUT: usize = 4 << 20;

struct Components(u32, std::ops::Range<u32>);

/// What the driver keeps of debugging: it is the device's.
#[derive(Debug)]
pub(crate) struct Debugging {
    /// `hl_device.in_debug`
    on: bool,
    etr: bool,
    /// Where the ETR's buffer begins, which is where its write pointer stays: nothing is traced.
    buffer: u64,
    etfs: [bool; ETFS.0 as usize],
}

impl Default for Debugging {
    fn default() -> Self {
        Self {
            on: false,
            etr: false,
            buffer: 0,
            etfs: [false; ETFS.0 as usize],
        }
    }
}

impl Device {
    pub(crate) fn debug(&self, request: DebugRequest<'_>) -> Result<()> {
        let mut guard = self.lock();
        self.operational(&mut guard, OP)?;
        let debugging = &mut guard.debugging;
        let refuse =
            |errno, why: &str| -> Result<(), Error> { Err(self.refusal(OP, errno).because(why.to_owned())) };
        let invalid = |why: &str| refuse(Errno::EINVAL, why);
        if request.op == DebugOp::SET_MODE {
            // device.c:1217
            return match (debugging.on, request.enable) {
                (true, true) => refuse(Errno::EFAULT, "the device is in debug mode already"),
                (false, false) => refuse(Errno::EFAULT, "the device is not in debug mode"),
                (_, on) => {
                    *debugging = Debugging {
                        on,
                        ..Debugging::default()
                    };
                    Ok(())
                }
            };
        }
        let size = match request.op {
            DebugOp::ETR => size_of::<HlDebugParamsEtr>(),
            DebugOp::ETF | DebugOp::STM => size_of::<gaudi_uapi::debug::HlDebugParamsStm>(),
            DebugOp::BMON => size_of::<gaudi_uapi::debug::HlDebugParamsBmon>(),
            DebugOp::SPMU => size_of::<HlDebugParamsSpmu>(),
            DebugOp::FUNNEL | DebugOp::TIMESTAMP => 0,
            // habanalabs_ioctl.c:1220
            _ => return invalid("there is no such operation"),
        };
        if !debugging.on {
            // habanalabs_ioctl.c:1205
            return refuse(Errno::EFAULT, "the device is not in debug mode");
        }
        if request.output.len() > MOST_OUTPUT {
            // habanalabs_ioctl.c: `kzalloc(args->output_size)`
            return refuse(Errno::ENOMEM, "the answer is too large");
        }
        // What is shorter than the struct is zeros behind; nothing of it is no input (habanalabs_ioctl.c: `debug_coresight`).
        let given = request
            .input
            .get(..size.min(request.input.len()))
            .unwrap_or_default();
        let has_input = !given.is_empty();
        let at = |components: &Components| match request.reg_idx {
            index if index >= components.0 => Err(()),
            index => Ok(!components.1.contains(&index)),
        };
        let there = match request.op {
            DebugOp::STM => at(&STMS),
            DebugOp::ETF => at(&ETFS),
            DebugOp::FUNNEL => at(&FUNNELS),
            DebugOp::BMON => at(&BMONS),
            DebugOp::SPMU => at(&SPMUS),
            _ => Ok(true),
        };
        let Ok(there) = there else {
            return invalid("there is no such component");
        };
        if there {
            let wants_input = match request.op {
                DebugOp::STM | DebugOp::BMON | DebugOp::SPMU => request.enable,
                // What is on already is left alone before the input is looked at.
                DebugOp::ETF => {
                    request.enable
                        && !debugging
                            .etfs
                            .get(request.reg_idx as usize)
                            .copied()
                            .unwrap_or(true)
                }
                DebugOp::ETR => request.enable && !debugging.etr,
                _ => false,
            };
            if wants_input && !has_input {
                return invalid("the component needs its parameters");
            }
            // gaudi2_coresight.c:2278: the ETR tells how far it wrote when it is switched off.
            let mut written = None;
            match request.op {
                DebugOp::ETF => {
                    if let Some(etf) = debugging.etfs.get_mut(request.reg_idx as usize) {
                        *etf = request.enable;
                    }
                }
                DebugOp::ETR => {
                    let etr = padded::<HlDebugParamsEtr>(given);
                    if wants_input && !takes_trace(&etr) {
                        return invalid(
                            "the trace buffer is empty, or lies where no memory of the user's can",
                        );
                    }
                    if wants_input {
                        debugging.buffer = etr.buffer_address;
                    } else if debugging.etr && !request.enable {
                        written = Some(debugging.buffer);
                    }
                    debugging.etr = request.enable;
                }
                DebugOp::SPMU => {
                    let events = if request.enable {
                        padded::<HlDebugParamsSpmu>(given).event_types_num
                    } else {
                        // The overflow and the cycle count are the last two.
                        (request.output.len() as u32 / 8).saturating_sub(2)
                    };
                    if events > COUNTERS {
                        return invalid("an SPMU counts six kinds of events");
                    }
                }
                _ => {}
            }
            request.output.fill(0);
            if let (Some(written), Some(place)) = (written, request.output.first_chunk_mut::<8>()) {
                *place = written.to_le_bytes();
            }
            return Ok(());
        }
        request.output.fill(0);
        Ok(())
    }
}

/// A struct of which the caller gave the front.
fn padded<T: FromBytes + IntoBytes>(given: &[u8]) -> T {
    let mut whole = T::new_zeroed();
    whole
        .as_mut_bytes()
        .iter_mut()
        .zip(given)
        .for_each(|(to, from)| *to = *from);
    whole
}

/// gaudi2_coresight.c `gaudi2_etr_validate_address`: ranges are looked at, not what is mapped in them.
fn takes_trace(etr: &HlDebugParamsEtr) -> bool {
    let sram = VaRange {
        start: DeviceVa(gaudi2::SRAM_BASE.0),
        end: DeviceVa(gaudi2::SRAM_BASE.0 + gaudi2::SRAM_SIZE),
        page: 4096,
    };
    etr.buffer_size > 0
        && [gaudi2::HOST_VA, gaudi2::HOST_HUGE_VA, gaudi2::DRAM_VA, sram]
            .iter()
            .any(|range| range.contains(DeviceVa(etr.buffer_address), etr.buffer_size))
}
