//! Which verdict can meet which target.

use super::target::{ChipEvent, NicEvent, Target};
use super::verdict::{Resource, Verdict};
use crate::operation::Operation as Op;

impl Verdict {
    /// Whether the fault can happen to a target.
    ///
    /// # Errors
    /// Why it cannot, and what to write instead.
    pub fn meets(self, target: Target) -> Result<(), &'static str> {
        match target {
            Target::Any => self.meets_every_operation(),
            Target::Only(operation) => self.meets_operation(operation),
            Target::Chip(event) => self.meets_chip(event),
            Target::Nic(event) => self.meets_nic(event),
        }
    }

    fn meets_every_operation(self) -> Result<(), &'static str> {
        // Of these each operation allows what any other does.
        let is_general = self.meets_operation(Op::CbDestroy).is_ok();
        match self {
            _ if is_general => Ok(()),
            Self::Lose => Err("only a submission can be lost: write submit:lose"),
            _ => Err("not every operation can meet it: name one"),
        }
    }

    fn meets_operation(self, operation: Op) -> Result<(), &'static str> {
        let only = |is_met: bool, reason| if is_met { Ok(()) } else { Err(reason) };
        let has_answer = matches!(operation, Op::Info | Op::Debug | Op::Nic);
        let waits = matches!(operation, Op::WaitCs | Op::WaitMultiCs | Op::WaitInterrupt);
        match self {
            Self::Error(_)
            | Self::Delay(_)
            | Self::Razwi
            | Self::Ecc
            | Self::FatalEcc
            | Self::Heartbeat
            | Self::Reset
            | Self::ComputeReset
            | Self::Remove => Ok(()),
            Self::Short(_) | Self::Flip(_) => only(
                has_answer,
                "only info, debug and nic return bytes; for memory write chip.dma",
            ),
            Self::Lose => only(
                operation == Op::Submit,
                "only a submission can be lost: write submit:lose",
            ),
            Self::Timeout => only(
                waits,
                "only a wait has a timeout: wait_cs, wait_multi_cs, wait_interrupt",
            ),
            Self::Eintr => only(
                waits,
                "only a wait is interrupted in the middle; otherwise error=EINTR",
            ),
            Self::Full(Resource::Queue) => only(operation == Op::Submit, "only submit uses a queue"),
            Self::Full(Resource::Memory) => only(
                matches!(
                    operation,
                    Op::CbCreate | Op::MemAlloc | Op::MemMapHost | Op::TsAlloc
                ),
                "it allocates no memory: cb_create, mem_alloc, mem_map_host and ts_alloc do",
            ),
            Self::Full(Resource::Space) => only(
                matches!(
                    operation,
                    Op::MemMapDevice | Op::MemMapHost | Op::RegisterDmabuf | Op::Mmap
                ),
                "it takes no addresses: mem_map_device, mem_map_host, register_dmabuf and mmap do",
            ),
            Self::Full(Resource::Fds) => only(
                operation == Op::ExportDmabuf,
                "it opens no file descriptor: export_dmabuf does",
            ),
            Self::Duplicate | Self::Reorder | Self::Late(_) => {
                Err("an operation happens once, in its place: write chip.completion or chip.interrupt")
            }
            Self::Torn(_) | Self::Stale => Err("an operation writes no device memory: write chip.dma"),
            Self::PageFault => Err("the chip faults, not the driver: write chip.dma or chip.walk"),
            Self::Hang => Err("the chip does it, not the driver: write chip.packet"),
            Self::Damage | Self::Status(_) | Self::Down | Self::QpError | Self::Revoke => {
                Err("only a NIC does it: write nic.post, nic.packet or nic.region")
            }
        }
    }

    fn meets_chip(self, event: ChipEvent) -> Result<(), &'static str> {
        use ChipEvent as Event;
        let only = |is_met: bool, reason| if is_met { Ok(()) } else { Err(reason) };
        let is_sent = matches!(event, Event::Interrupt | Event::Completion);
        match self {
            Self::Ecc | Self::FatalEcc | Self::Heartbeat => only(
                event != Event::Firmware,
                "a firmware that answers a packet reports nothing else: write chip.packet",
            ),
            Self::Lose => only(
                is_sent || matches!(event, Event::Packet | Event::Sob),
                "it cannot be lost: chip.packet, chip.sob, chip.interrupt and chip.completion can",
            ),
            Self::Duplicate => only(
                is_sent || event == Event::Sob,
                "it cannot happen twice: chip.sob, chip.interrupt and chip.completion can",
            ),
            Self::Reorder | Self::Late(_) => {
                only(is_sent, "only chip.interrupt and chip.completion can be late")
            }
            Self::Flip(_) | Self::Torn(_) | Self::Stale => only(
                event == Event::Dma,
                "only a DMA engine moves bytes: write chip.dma",
            ),
            Self::PageFault => only(
                matches!(event, Event::Dma | Event::PageWalk),
                "it accesses no memory by an address: write chip.dma or chip.walk",
            ),
            Self::Razwi => only(
                event == Event::Dma,
                "only an access of a DMA engine is illegal: write chip.dma",
            ),
            Self::Hang => only(
                matches!(event, Event::Packet | Event::Firmware),
                "it cannot hang: chip.packet stops its queue, chip.firmware the firmware",
            ),
            Self::Full(Resource::Queue) => Err("the driver sees a full queue: write submit:full=queue"),
            Self::Error(_) | Self::Full(_) => {
                Err("the chip reports no errno: name the operation, or write page_fault, hang or ecc")
            }
            Self::Short(_) => Err("a transfer of the chip is torn: write torn=BYTES"),
            Self::Delay(_) => Err("the modelled chip has no clock: write late=N"),
            Self::Timeout | Self::Eintr => Err("only a wait of the program ends this way: write wait_cs"),
            Self::Reset | Self::ComputeReset => {
                Err("the driver resets, not the chip: write ecc=fatal, or reset of an operation")
            }
            Self::Remove => Err("the driver reports a removal: write it of an operation"),
            Self::Damage | Self::Status(_) | Self::Down | Self::QpError | Self::Revoke => {
                Err("only a NIC does it: write nic.post, nic.packet or nic.region")
            }
        }
    }

    fn meets_nic(self, event: NicEvent) -> Result<(), &'static str> {
        use NicEvent as Event;
        let only = |is_met: bool, reason| if is_met { Ok(()) } else { Err(reason) };
        match self {
            Self::Error(_) => only(
                matches!(event, Event::Post | Event::State),
                "only a call of the program has an errno: write nic.post or nic.state",
            ),
            Self::Full(Resource::Queue) => only(event == Event::Post, "only nic.post uses a queue"),
            Self::Delay(_) => only(
                matches!(event, Event::Packet | Event::Completion),
                "only nic.packet and nic.completion are delayed",
            ),
            Self::Lose | Self::Duplicate => only(
                matches!(event, Event::Packet | Event::Completion),
                "only nic.packet and nic.completion can be lost or happen twice",
            ),
            Self::Reorder => only(
                matches!(event, Event::Packet | Event::Completion),
                "only nic.packet and nic.completion have an order",
            ),
            Self::Late(_) => Err("a NIC has a clock: write nic.packet:delay=TIME"),
            Self::Flip(_) | Self::Damage => only(event == Event::Packet, "only nic.packet carries bytes"),
            Self::Status(_) => only(event == Event::Post, "a status is of a request: write nic.post"),
            Self::QpError => only(
                matches!(event, Event::Post | Event::Packet | Event::State),
                "write it of the cause: nic.post, nic.packet or nic.state",
            ),
            Self::Down => only(
                event == Event::Packet,
                "a port goes down under a packet: write nic.packet",
            ),
            Self::Revoke => only(
                event == Event::Region,
                "only a region is revoked: write nic.region",
            ),
            Self::Full(_) => Err("write error=ENOMEM or error=EMFILE of nic.post or nic.state"),
            Self::Short(_) | Self::Torn(_) | Self::Stale => {
                Err("a NIC delivers a whole message or none: write flip=BIT")
            }
            Self::Timeout => Err("a peer that does not answer is status=RETRY_EXC_ERR of nic.post"),
            Self::Eintr => Err("no call of a NIC waits"),
            Self::Hang => Err("a NIC that stops is lose, or down"),
            Self::PageFault | Self::Razwi | Self::Ecc | Self::FatalEcc | Self::Heartbeat => {
                Err("only the chip does it: write chip.packet or chip.dma")
            }
            Self::Reset | Self::ComputeReset | Self::Remove => {
                Err("it happens to the device: write it of an operation")
            }
        }
    }
}
