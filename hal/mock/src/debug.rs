//! Debug mode and trace components (habanalabs_ioctl.c `hl_debug_ioctl`, gaudi2_coresight.c).
//!
//! The mock has no CoreSight: an enabled component traces nothing, and every counter reads as zero.

use gaudi_seam::{DebugRequest, DeviceVa, Error, Operation, Result, rules};
use gaudi_spec::Asic;
use gaudi_spec::asic::VaRange;
use gaudi_uapi::debug::{DebugOp, HlDebugParamsEtr, HlDebugParamsSpmu};
use zerocopy::{FromBytes, IntoBytes};

const OP: Operation = Operation::Debug;

/// The debug state of a device.
#[derive(Debug)]
pub(crate) struct Debugging {
    /// `hl_device.in_debug`
    pub(crate) on: bool,
    etr: bool,
    /// The start of the ETR's buffer, and its write pointer: nothing is traced.
    buffer: u64,
    etfs: Vec<bool>,
}

impl Debugging {
    pub(crate) fn new(asic: &Asic) -> Self {
        Self {
            on: false,
            etr: false,
            buffer: 0,
            etfs: vec![false; asic.debug.etfs.0 as usize],
        }
    }

    /// Leaves debug mode, and disables every component.
    pub(crate) fn restart(&mut self) {
        let Self {
            on,
            etr,
            buffer,
            etfs,
        } = self;
        (*on, *etr, *buffer) = (false, false, 0);
        etfs.fill(false);
    }

    /// Performs a request that the rules allow (habanalabs_ioctl.c `hl_debug_ioctl`).
    pub(crate) fn configure(&mut self, asic: &Asic, request: DebugRequest<'_>) -> Result<()> {
        let debugging = self;
        let refuse = |rule| Err(Error::from_rule(OP, rule));
        if request.op == DebugOp::SET_MODE {
            // device.c:hl_device_set_debug_mode
            debugging.restart();
            debugging.on = request.enable;
            return Ok(());
        }
        let size = request.op.input().map_or(0, |input| input.size);
        // A shorter input is padded with zeros; an empty one is none (habanalabs_ioctl.c
        // `debug_coresight`).
        let given = request
            .input
            .get(..size.min(request.input.len()))
            .unwrap_or_default();
        let has_input = !given.is_empty();
        let components = request.components(asic);
        let there = components.is_none_or(|components| !components.1.contains(&request.reg_idx));
        if !there {
            request.output.fill(0);
            return Ok(());
        }
        let wants_input = match request.op {
            DebugOp::STM | DebugOp::BMON | DebugOp::SPMU => request.enable,
            // An enabled component is left unchanged, and its input is not read.
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
            return refuse(&rules::debug::PARAMETERS);
        }
        // gaudi2_coresight.c `gaudi2_config_etr`: the ETR reports its write pointer when it is
        // disabled.
        let mut written = None;
        match request.op {
            DebugOp::ETF => {
                if let Some(etf) = debugging.etfs.get_mut(request.reg_idx as usize) {
                    *etf = request.enable;
                }
            }
            DebugOp::ETR => {
                let etr = padded::<HlDebugParamsEtr>(given);
                if wants_input && !takes_trace(asic, &etr) {
                    return refuse(if etr.buffer_size == 0 {
                        &rules::debug::TRACE_BUFFER_EMPTY
                    } else {
                        &rules::debug::TRACE_BUFFER_ADDRESS
                    });
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
                if events > asic.debug.spmu_counters {
                    return refuse(&rules::debug::EVENTS);
                }
            }
            _ => {}
        }
        request.output.fill(0);
        if let (Some(written), Some(place)) = (written, request.output.first_chunk_mut::<8>()) {
            *place = written.to_le_bytes();
        }
        Ok(())
    }
}

/// Reads a struct of which the caller passed the first bytes.
fn padded<T: FromBytes + IntoBytes>(given: &[u8]) -> T {
    let mut whole = T::new_zeroed();
    whole
        .as_mut_bytes()
        .iter_mut()
        .zip(given)
        .for_each(|(to, from)| *to = *from);
    whole
}

/// gaudi2_coresight.c `gaudi2_etr_validate_address`: checks address ranges, not mappings.
fn takes_trace(asic: &Asic, etr: &HlDebugParamsEtr) -> bool {
    let sram = VaRange {
        start: DeviceVa(asic.sram_base.0),
        end: DeviceVa(asic.sram_base.0 + asic.sram_size),
        page: 4096,
    };
    etr.buffer_size > 0
        && [asic.host_va, asic.host_huge_va, asic.dram_va, sram]
            .iter()
            .any(|range| range.contains(DeviceVa(etr.buffer_address), etr.buffer_size))
}
