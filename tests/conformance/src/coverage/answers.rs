//! Every errno that the driver can answer to a user of Gaudi2: walked through in the source of Linux 7.3.4.
//!
//! One row a cause. `=> [cases]` names the cases that show it, and a run must see them do so; `=> because` says why no case does.
//! Causes of the driver's start-up and of chips other than Gaudi2 are left out; lines are those where the errno is written.

/// Why no case shows a cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The kernel has no memory for a small object of its own: no request brings that about.
    KernelMemory,
    /// The seam hands slices and structs over, so that the driver is never given a wrong address or padding.
    Typed,
    /// A signal came: the mock is no kernel, and the kernel backend asks again.
    Signal,
    /// Gaudi2 never comes there: what it has or lacks decides before.
    Chip,
    /// Only on a card that was sold with some engines switched off; the mock's has all.
    Binned,
    /// The kernel itself must have broken what it keeps true: the line is there in case.
    Never,
    /// Somebody else must act in the moment between two lines of the driver.
    Race,
    /// The card must be removed, fail, or be started anew.
    Card,
    /// The mock has no other user beside: its device is private to a process.
    OneProcess,
    /// Only another device's driver asks.
    Importer,
}

impl Why {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Self::KernelMemory => "the kernel must run out of memory for its own objects",
            Self::Typed => {
                "the seam passes typed values: no wrong address of an answer and no padding can be given"
            }
            Self::Signal => {
                "a signal must arrive in the wait; the kernel backend asks again (tests of `gaudi-kernel`)"
            }
            Self::Chip => "Gaudi2 never gets there",
            Self::Binned => "a card with engines switched off (binning); the mock's has all",
            Self::Never => "a check of what the kernel itself keeps true",
            Self::Race => "another thread must act between two lines of the driver",
            Self::Card => "the card must be removed, be started, or fail",
            Self::OneProcess => "memory of another context: one process has a mock's device at a time",
            Self::Importer => "only another device's driver asks for it",
        }
    }
}

/// What shows a cause.
#[derive(Debug, Clone, Copy)]
pub enum Shown {
    /// These cases.
    By(&'static [&'static str]),
    /// None, and why.
    Not(Why),
}

/// One cause of one errno.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    /// The operation, as the headers name it.
    pub operation: &'static str,
    /// The errno's name.
    pub errno: &'static str,
    /// File and line below drivers/accel/habanalabs, Linux 7.3.4.
    pub source: &'static str,
    /// What the user did.
    pub cause: &'static str,
    /// What shows it.
    pub shown: Shown,
}

macro_rules! answers {
    (@ [$($case:literal),+]) => { Shown::By(&[$($case),+]) };
    (@ $why:ident) => { Shown::Not(Why::$why) };
    ($($operation:literal $errno:ident $source:literal $cause:literal => $shown:tt;)*) => {
        /// The rows, in the order of the header's operations.
        pub const ANSWERS: &[Answer] = &[$(Answer {
            operation: $operation,
            errno: stringify!($errno),
            source: $source,
            cause: $cause,
            shown: answers!(@ $shown),
        }),*];
    };
}

answers! {
    "open" ENOMEM "common/habanalabs_drv.c:186" "no memory for the file's data" => KernelMemory;
    "open" EAGAIN "common/habanalabs_drv.c:208" "the device is being reset" => Card;
    "open" EPERM "common/habanalabs_drv.c:210" "the device is not operational" => Card;
    "open" EAGAIN "common/habanalabs_drv.c:219" "device memory is being scrubbed" => Race;
    "open" EAGAIN "common/habanalabs_drv.c:227" "the last user's context is still being released" => Race;
    "open" EBUSY "common/habanalabs_drv.c:235" "another user has it, or an export of the last one lives"
        => ["open.second-user", "open.while-export-holds-device", "open.while-duplicate-of-export-lives"];
    "open" ENOMEM "common/context.c:160" "no memory for a context" => KernelMemory;
    "open(control)" ENXIO "common/habanalabs_drv.c:291" "the node is left over" => Card;
    "open(control)" ENOMEM "common/habanalabs_drv.c:296" "no memory for the file's data" => KernelMemory;
    "open(control)" EPERM "common/habanalabs_drv.c:314" "the device is disabled" => Card;

    "HL_IOCTL_INFO" EINVAL "common/habanalabs_ioctl.c:1015" "padding is not 0" => Typed;
    "HL_IOCTL_INFO" EINVAL "common/habanalabs_ioctl.c:1151" "no such question" => ["info.unknown-operation"];
    "HL_INFO_HW_IDLE" EBUSY "common/habanalabs_ioctl.c:1096" "a reset (of every question that needs the chip)" => ["reset.refuses-questions-to-the-chip"];
    "HL_IOCTL_INFO" EFAULT "common/habanalabs_ioctl.c:116" "the answer cannot be written (of every question)" => Typed;
    "HL_IOCTL_INFO" ENODEV "common/habanalabs_ioctl.c:1306" "the device was removed" => Card;
    "HL_IOCTL_INFO" ENOMEM "common/habanalabs_ioctl.c:1267" "no memory for the argument" => KernelMemory;
    "HL_INFO_DEVICE_STATUS" EINVAL "common/habanalabs_ioctl.c:41" "no room for an answer" => ["info.answer-without-room"];
    "HL_INFO_HW_IP_INFO" EINVAL "common/habanalabs_ioctl.c:58" "no room for an answer" => ["info.answer-without-room"];
    "HL_INFO_HW_EVENTS" EINVAL "common/habanalabs_ioctl.c:127" "no room for an answer" => ["info.rooms"];
    "HL_INFO_HW_EVENTS_AGGREGATE" EINVAL "common/habanalabs_ioctl.c:127" "no room for an answer" => ["info.rooms"];
    "HL_INFO_HW_EVENTS" EOPNOTSUPP "common/habanalabs_ioctl.c:132" "the chip counts no events" => Chip;
    "HL_INFO_GET_EVENTS" EINVAL "common/habanalabs_ioctl.c:145" "no room for 64 bits" => ["events.answer-without-room"];
    "HL_INFO_GET_EVENTS" EOPNOTSUPP "common/habanalabs_ioctl.c:1173" "asked of a control node" => ["control.event-operations"];
    "HL_INFO_DRAM_USAGE" EINVAL "common/habanalabs_ioctl.c:165" "no room for an answer" => ["info.answer-without-room"];
    "HL_INFO_HW_IDLE" EINVAL "common/habanalabs_ioctl.c:186" "no room for an answer" => ["info.answer-without-room"];
    "HL_INFO_DEVICE_UTILIZATION" EINVAL "common/habanalabs_ioctl.c:271" "no room for an answer" => ["info.of-firmware"];
    "HL_INFO_DEVICE_UTILIZATION" EINVAL "common/habanalabs_ioctl.c:275" "the firmware does not tell the power" => Card;
    "HL_INFO_CLK_RATE" EINVAL "common/habanalabs_ioctl.c:289" "no room for an answer" => ["info.of-firmware"];
    "HL_INFO_RESET_COUNT" EINVAL "common/habanalabs_ioctl.c:306" "no room for an answer" => ["info.answer-without-room"];
    "HL_INFO_TIME_SYNC" EINVAL "common/habanalabs_ioctl.c:322" "no room for an answer" => ["info.answer-without-room"];
    "HL_INFO_PCI_COUNTERS" EINVAL "common/habanalabs_ioctl.c:341" "no room for an answer" => ["info.of-firmware"];
    "HL_INFO_CLK_THROTTLE_REASON" EINVAL "common/habanalabs_ioctl.c:361" "no room for an answer" => ["info.of-firmware"];
    "HL_INFO_CS_COUNTERS" EINVAL "common/habanalabs_ioctl.c:401" "no room for an answer" => ["info.answer-without-room"];
    "HL_INFO_SYNC_MANAGER" EINVAL "common/habanalabs_ioctl.c:450" "no room for an answer" => ["info.answer-without-room"];
    "HL_INFO_SYNC_MANAGER" EINVAL "common/habanalabs_ioctl.c:453" "no such die core" => ["info.sync-manager.no-such-dcore"];
    "HL_INFO_TOTAL_ENERGY" EINVAL "common/habanalabs_ioctl.c:476" "no room for an answer" => ["info.of-firmware"];
    "HL_INFO_PLL_FREQUENCY" EINVAL "common/habanalabs_ioctl.c:496" "no room for an answer" => ["info.of-firmware"];
    "HL_INFO_POWER" EINVAL "common/habanalabs_ioctl.c:515" "no room for an answer" => ["info.of-firmware"];
    "HL_INFO_OPEN_STATS" EINVAL "common/habanalabs_ioctl.c:533" "no room for an answer" => ["info.answer-without-room"];
    "HL_INFO_DRAM_PENDING_ROWS" EINVAL "common/habanalabs_ioctl.c:554" "no room for an answer" => ["info.of-firmware"];
    "HL_INFO_DRAM_REPLACED_ROWS" EINVAL "common/habanalabs_ioctl.c:573" "no room for an answer" => ["info.of-firmware"];
    "HL_INFO_LAST_ERR_OPEN_DEV_TIME" EINVAL "common/habanalabs_ioctl.c:590" "no room for an answer" => ["info.rooms"];
    "HL_INFO_CS_TIMEOUT_EVENT" EINVAL "common/habanalabs_ioctl.c:605" "no room for an answer" => ["info.answer-without-room"];
    "HL_INFO_RAZWI_EVENT" EINVAL "common/habanalabs_ioctl.c:621" "no room for an answer" => ["info.rooms"];
    "HL_INFO_UNDEFINED_OPCODE_EVENT" EINVAL "common/habanalabs_ioctl.c:639" "no room for an answer" => ["info.rooms"];
    "HL_INFO_DEV_MEM_ALLOC_PAGE_SIZES" EINVAL "common/habanalabs_ioctl.c:661" "no room for an answer" => ["info.answer-without-room"];
    "HL_INFO_SECURED_ATTESTATION" EINVAL "common/habanalabs_ioctl.c:683" "no room for an answer" => ["info.attestation"];
    "HL_INFO_SECURED_ATTESTATION" ENOMEM "common/habanalabs_ioctl.c:687" "no memory for the answer" => KernelMemory;
    "HL_INFO_DEV_SIGNED" EINVAL "common/habanalabs_ioctl.c:732" "no room for an answer" => ["info.attestation"];
    "HL_INFO_DEV_SIGNED" ENOMEM "common/habanalabs_ioctl.c:736" "no memory for the answer" => KernelMemory;
    "HL_INFO_REGISTER_EVENTFD" EINVAL "common/habanalabs_ioctl.c:778" "an eventfd is registered already" => ["events.register-twice"];
    "HL_INFO_REGISTER_EVENTFD" EINVAL "common/habanalabs_ioctl.c:782" "the descriptor is no eventfd" => ["events.register-no-eventfd"];
    "HL_INFO_REGISTER_EVENTFD" EOPNOTSUPP "common/habanalabs_ioctl.c:1173" "asked of a control node" => ["events.control-node"];
    "HL_INFO_UNREGISTER_EVENTFD" EINVAL "common/habanalabs_ioctl.c:798" "none is registered" => ["events.unregister-unregistered"];
    "HL_INFO_UNREGISTER_EVENTFD" EOPNOTSUPP "common/habanalabs_ioctl.c:1173" "asked of a control node" => ["events.control-node"];
    "HL_INFO_ENGINE_STATUS" EINVAL "common/habanalabs_ioctl.c:816" "less than 1 KiB or more than 1 MiB of room" => ["info.engine-status.size-of-answer"];
    "HL_INFO_ENGINE_STATUS" ENOMEM "common/habanalabs_ioctl.c:831" "the text is longer than the room" => ["info.engine-status.longer-than-its-room"];
    "HL_INFO_PAGE_FAULT_EVENT" EINVAL "common/habanalabs_ioctl.c:851" "no room for an answer" => ["info.rooms"];
    "HL_INFO_USER_MAPPINGS" EINVAL "common/habanalabs_ioctl.c:870" "no answer is asked for" => Typed;
    "HL_INFO_USER_MAPPINGS" ENOMEM "common/habanalabs_ioctl.c:880" "the mappings do not fit" => ["events.page-fault.mappings-without-room"];
    "HL_INFO_HW_ERR_EVENT" EINVAL "common/habanalabs_ioctl.c:894" "a recorded error, and no answer asked for" => Card;
    "HL_INFO_HW_ERR_EVENT" ENOMEM "common/habanalabs_ioctl.c:901" "a recorded error that does not fit" => Card;
    "HL_INFO_FW_ERR_EVENT" EINVAL "common/habanalabs_ioctl.c:916" "a recorded error, and no answer asked for" => Card;
    "HL_INFO_FW_ERR_EVENT" ENOMEM "common/habanalabs_ioctl.c:923" "a recorded error that does not fit" => Card;
    "HL_INFO_USER_ENGINE_ERR_EVENT" EINVAL "common/habanalabs_ioctl.c:938" "a recorded error, and no answer asked for" => Typed;
    "HL_INFO_USER_ENGINE_ERR_EVENT" ENOMEM "common/habanalabs_ioctl.c:945" "the record does not fit" => ["events.engine-error-without-room"];
    "HL_INFO_FW_GENERIC_REQ" EINVAL "common/habanalabs_ioctl.c:971" "no such request to firmware" => ["info.firmware-request.unknown"];
    "HL_INFO_FW_GENERIC_REQ" EINVAL "common/habanalabs_ioctl.c:976" "more than 1 MiB of room" => ["info.firmware-request.too-large"];
    "HL_INFO_FW_GENERIC_REQ" EIO "common/firmware_if.c:519" "firmware that does not do it" => ["info.firmware-request.not-known"];
    "HL_INFO_FW_GENERIC_REQ" ENOMEM "common/habanalabs_ioctl.c:981" "no room at all" => ["info.firmware-request.without-room"];
    "HL_INFO_FW_GENERIC_REQ" EFAULT "common/habanalabs_ioctl.c:986" "the request cannot be read" => Typed;

    "HL_CB_OP_CREATE" EBUSY "common/command_buffer.c:378" "the device is not operational" => ["reset.refuses-everything"];
    "HL_CB_OP_CREATE" EINVAL "common/command_buffer.c:387" "above HL_MAX_CB_SIZE" => ["buffer.create.too-large"];
    "HL_CB_OP_CREATE" ENOMEM "common/command_buffer.c:38" "the addresses for command buffers are used up" => ["buffer.create.no-address-left"];
    "HL_CB_OP_CREATE" EINVAL "common/command_buffer.c:27" "mapped buffers where the chip maps none" => Chip;
    "HL_CB_OP_CREATE" EBUSY "common/command_buffer.c:283" "a reset began since the first look" => Race;
    "HL_CB_OP_CREATE" ENOMEM "common/command_buffer.c:214" "no memory for a buffer" => KernelMemory;
    "HL_CB_OP_CREATE" ENOTTY "common/habanalabs_ioctl.c:1315" "asked of a control node (every operation but INFO)" => ["control.other-operations"];
    "HL_CB_OP_DESTROY" EBUSY "common/command_buffer.c:378" "the device is not operational" => ["reset.refuses-everything"];
    "HL_CB_OP_DESTROY" EINVAL "common/command_buffer.c:312" "destroyed already" => ["buffer.destroy.twice-while-mmapped"];
    "HL_CB_OP_DESTROY" EINVAL "common/command_buffer.c:321" "no such buffer" => ["buffer.destroy.twice", "buffer.handle.unknown"];
    "HL_CB_OP_INFO" EBUSY "common/command_buffer.c:378" "the device is not operational" => ["reset.refuses-everything"];
    "HL_CB_OP_INFO" EINVAL "common/command_buffer.c:344" "no such buffer" => ["buffer.handle.unknown"];
    "HL_CB_OP_INFO" EINVAL "common/command_buffer.c:352" "it has no device address" => ["buffer.info.not-mapped-to-device"];
    "HL_CB_OP_INFO" EINVAL "common/command_buffer.c:421" "no such operation" => Typed;

    "HL_IOCTL_CS" EINVAL "common/command_submission.c:1360" "padding is not 0" => Typed;
    "HL_IOCTL_CS" EBUSY "common/command_submission.c:1364" "the device is not operational" => ["reset.refuses-everything", "submit.timeout.device-is-lost"];
    "HL_IOCTL_CS" EPERM "common/command_submission.c:1369" "stages, which Gaudi2 does not take" => ["submit.in-stages"];
    "HL_IOCTL_CS" EINVAL "common/command_submission.c:1378" "two types at once" => ["submit.types-are-exclusive"];
    "HL_IOCTL_CS" EINVAL "common/command_submission.c:1389" "signals where the chip has none" => Chip;
    "HL_IOCTL_CS" EINVAL "common/command_submission.c:1395" "no chunks" => ["submit.no-chunks"];
    "HL_IOCTL_CS" EINVAL "common/command_submission.c:1401" "a signal or a wait with other than one chunk" => ["signal.number-of-chunks"];
    "HL_IOCTL_CS" EINVAL "common/command_submission.c:1420" "more than 512 chunks" => ["submit.too-many-chunks"];
    "HL_IOCTL_CS" ENOMEM "common/command_submission.c:1429" "no memory for the chunks" => KernelMemory;
    "HL_IOCTL_CS" EFAULT "common/command_submission.c:1438" "the chunks cannot be read" => Typed;
    "HL_IOCTL_CS" EAGAIN "common/command_submission.c:991" "64 submissions are in flight" => ["submit.sixty-five-in-flight"];
    "HL_IOCTL_CS" ENOMEM "common/command_submission.c:917" "no memory for the submission" => KernelMemory;
    "HL_IOCTL_CS" EINVAL "common/command_submission.c:1217" "no such queue" => ["submit.unknown-queue"];
    "HL_IOCTL_CS" EINVAL "common/command_submission.c:1225" "the queue's type is not one of a queue" => Chip;
    "HL_IOCTL_CS" EINVAL "common/command_submission.c:1231" "the queue is binned" => Binned;
    "HL_IOCTL_CS" EINVAL "common/command_submission.c:1238" "the queue is the driver's" => ["submit.queue-of-the-driver"];
    "HL_IOCTL_CS" EINVAL "common/command_submission.c:1250" "a buffer of the user's where only the kernel's go" => Chip;
    "HL_IOCTL_CS" EINVAL "common/command_submission.c:1260" "a buffer of the kernel's, which Gaudi2 takes nowhere" => ["submit.buffer-of-the-kernel"];
    "HL_IOCTL_CS" EINVAL "common/command_submission.c:1560" "no such buffer of the kernel's" => Chip;
    "HL_IOCTL_CS" ENOMEM "common/command_submission.c:1590" "no memory for a job" => KernelMemory;
    "HL_IOCTL_CS" EINVAL "common/command_submission.c:1641" "a timestamp where no queue completes" => Chip;
    "HL_IOCTL_CS" EINVAL "gaudi2/gaudi2.c:7140" "the queue is not enabled" => ["submit.queue-not-enabled"];
    "HL_IOCTL_CS" EFAULT "gaudi2/gaudi2.c:7187" "no command buffer can lie there"
        => ["submit.address-outside-every-range", "submit.address-past-the-end", "submit.size-zero"];
    "HL_IOCTL_CS" EINVAL "gaudi2/gaudi2.c:7199" "a buffer of the kernel's where the MMU does not work" => Chip;
    "HL_IOCTL_CS" EAGAIN "common/hw_queue.c:222" "the queue is full" => ["submit.queue-full"];
    "HL_IOCTL_CS" EPERM "common/hw_queue.c:657" "the device failed since the first look" => Race;
    "HL_IOCTL_CS" EINVAL "common/hw_queue.c:684" "the queue's type is not one of a queue" => Chip;
    "HL_IOCTL_CS" ENOEXEC "common/command_submission.c:1759" "the restore phase failed" => ["submit.restore-hangs"];
    "HL_IOCTL_CS" ETIMEDOUT "common/command_submission.c:1772" "the context switch took too long" => Chip;
    "HL_CS_FLAGS_WAIT" EINVAL "common/command_submission.c:1899" "a wait for more than one signal" => ["signal.wait-for-several"];
    "HL_CS_FLAGS_WAIT" ENOMEM "common/command_submission.c:1912" "no memory for the numbers" => KernelMemory;
    "HL_CS_FLAGS_WAIT" EFAULT "common/command_submission.c:1923" "the signal's number cannot be read" => ["signal.wait-for-no-address"];
    "HL_CS_FLAGS_SIGNAL" EINVAL "common/command_submission.c:1830" "both sync objects of the queue are in use" => ["signal.both-objects-in-use"];
    "HL_CS_FLAGS_SIGNAL" ENOMEM "common/command_submission.c:1952" "no memory for a job" => KernelMemory;
    "HL_CS_FLAGS_RESERVE_SIGNALS_ONLY" EINVAL "common/command_submission.c:2018" "more signals than an object counts" => ["signal.reserve-too-many"];
    "HL_CS_FLAGS_RESERVE_SIGNALS_ONLY" EINVAL "common/command_submission.c:2025" "no such queue" => ["signal.reserve-of-no-queue"];
    "HL_CS_FLAGS_RESERVE_SIGNALS_ONLY" EINVAL "common/command_submission.c:2035" "the queue takes no signals" => ["signal.reserve-of-no-queue"];
    "HL_CS_FLAGS_RESERVE_SIGNALS_ONLY" ENOMEM "common/command_submission.c:2043" "no memory for a handle" => KernelMemory;
    "HL_CS_FLAGS_RESERVE_SIGNALS_ONLY" EINVAL "common/command_submission.c:2059" "handles are used up" => KernelMemory;
    "HL_CS_FLAGS_RESERVE_SIGNALS_ONLY" EINVAL "common/command_submission.c:2083" "both sync objects of the queue are in use" => ["signal.both-objects-in-use"];
    "HL_CS_FLAGS_UNRESERVE_SIGNALS_ONLY" EINVAL "common/command_submission.c:2162" "signals were taken since" => ["signal.unreserve-out-of-step"];
    "HL_CS_FLAGS_UNRESERVE_SIGNALS_ONLY" EINVAL "common/command_submission.c:2185" "no such reservation" => ["signal.unreserve-unknown"];
    "HL_CS_FLAGS_SIGNAL" EINVAL "common/command_submission.c:2235" "no such queue" => ["signal.no-such-queue"];
    "HL_CS_FLAGS_SIGNAL" EINVAL "common/command_submission.c:2249" "the queue takes no signals" => ["signal.queue-without-signals"];
    "HL_CS_FLAGS_COLLECTIVE_WAIT" EINVAL "common/command_submission.c:2259" "the queue is no collective's master" => ["signal.collective"];
    "HL_CS_FLAGS_COLLECTIVE_WAIT" EINVAL "common/command_submission.c:2268" "a collective's master, and no NIC port" => Chip;
    "HL_CS_FLAGS_WAIT" EINVAL "common/command_submission.c:2326" "no submission uses the reservation" => ["signal.wait-for-unused-reservation"];
    "HL_CS_FLAGS_WAIT" EINVAL "common/command_submission.c:2363" "the number is no signal's" => ["signal.wait-for-no-signal"];
    "HL_CS_FLAGS_WAIT" EINVAL "common/context.c:349" "the number is of the future" => ["signal.wait-for-the-future"];
    "HL_CS_FLAGS_ENGINE_CORE_COMMAND" EPERM "common/command_submission.c:2469" "the chip has no engine modes" => Chip;
    "HL_CS_FLAGS_ENGINE_CORE_COMMAND" EINVAL "common/command_submission.c:2473" "no cores, or too many" => ["engines.cores.how-many"];
    "HL_CS_FLAGS_ENGINE_CORE_COMMAND" EINVAL "common/command_submission.c:2478" "no command to cores" => ["engines.cores.command"];
    "HL_CS_FLAGS_ENGINE_CORE_COMMAND" ENOMEM "common/command_submission.c:2484" "no memory for the ids" => KernelMemory;
    "HL_CS_FLAGS_ENGINE_CORE_COMMAND" EFAULT "common/command_submission.c:2489" "the ids cannot be read" => Typed;
    "HL_CS_FLAGS_ENGINE_CORE_COMMAND" EPERM "gaudi2/gaudi2.c:5043" "a core does not answer (-1)" => Card;
    "HL_CS_FLAGS_ENGINES_COMMAND" EPERM "common/command_submission.c:2507" "the chip has no engine modes" => Chip;
    "HL_CS_FLAGS_ENGINES_COMMAND" EINVAL "common/command_submission.c:2511" "no such command" => ["engines.no-such-command"];
    "HL_CS_FLAGS_ENGINES_COMMAND" EINVAL "common/command_submission.c:2520" "no engines, or too many" => ["engines.how-many"];
    "HL_CS_FLAGS_ENGINES_COMMAND" ENOMEM "common/command_submission.c:2526" "no memory for the ids" => KernelMemory;
    "HL_CS_FLAGS_ENGINES_COMMAND" EFAULT "common/command_submission.c:2531" "the ids cannot be read" => Typed;
    "HL_CS_FLAGS_ENGINES_COMMAND" EINVAL "gaudi2/gaudi2.c:5159" "an engine that cannot be stalled" => ["engines.cannot-be-stalled"];
    "HL_CS_FLAGS_ENGINES_COMMAND" EINVAL "gaudi2/gaudi2.c:5180" "command 0" => ["engines.command-zero"];
    "HL_CS_FLAGS_FLUSH_PCI_HBW_WRITES" EOPNOTSUPP "common/command_submission.c:2547" "the chip cannot" => Chip;

    "HL_IOCTL_WAIT_CS" EBUSY "common/command_submission.c:3732" "the device is not operational, or waits for its user to go"
        => ["reset.refuses-everything", "events.timeout.reset-waits-for-user"];
    "HL_IOCTL_WAIT_CS" EINVAL "common/context.c:349" "the number is of the future" => ["wait.future-number"];
    "HL_IOCTL_WAIT_CS" ETIMEDOUT "common/command_submission.c:784" "the submission ran into its limit" => ["submit.timeout.late"];
    "HL_IOCTL_WAIT_CS" EIO "common/command_submission.c:786" "a reset aborted it" => ["submit.timeout.beside-a-late-one"];
    "HL_IOCTL_WAIT_CS" EINTR "common/command_submission.c:3173" "a signal came" => Signal;
    "HL_WAIT_CS_FLAGS_MULTI_CS" EINVAL "common/command_submission.c:3022" "padding is not 0" => Typed;
    "HL_WAIT_CS_FLAGS_MULTI_CS" EPERM "common/command_submission.c:3027" "Gaudi2's driver does not do it" => ["wait.any-of-several"];
    "HL_WAIT_CS_FLAGS_MULTI_CS" EINVAL "common/command_submission.c:3035" "more than 32" => Chip;
    "HL_WAIT_CS_FLAGS_MULTI_CS" EFAULT "common/command_submission.c:3049" "the numbers cannot be read" => Chip;
    "HL_WAIT_CS_FLAGS_MULTI_CS" EINTR "common/command_submission.c:3129" "a signal came" => Chip;
    "HL_WAIT_CS_FLAGS_MULTI_CS" EBUSY "common/command_submission.c:3732" "the device is not operational" => ["reset.refuses-everything"];
    "HL_WAIT_CS_FLAGS_INTERRUPT" EBUSY "common/command_submission.c:3732" "the device is not operational" => ["reset.refuses-everything"];
    "HL_WAIT_CS_FLAGS_INTERRUPT" EPERM "common/command_submission.c:3637" "the chip has no interrupts for users" => Chip;
    "HL_WAIT_CS_FLAGS_INTERRUPT" EINVAL "common/command_submission.c:3651" "a decoder that is switched off" => Binned;
    "HL_WAIT_CS_FLAGS_INTERRUPT" EINVAL "common/command_submission.c:3667" "no such interrupt" => ["wait.interrupt.no-such-number"];
    "HL_WAIT_CS_FLAGS_INTERRUPT" EFAULT "common/command_submission.c:3542" "the word cannot be read" => ["wait.interrupt.no-such-address"];
    "HL_WAIT_CS_FLAGS_INTERRUPT" EFAULT "common/command_submission.c:3577" "the word can no longer be read after an interrupt" => Race;
    "HL_WAIT_CS_FLAGS_INTERRUPT" EINTR "common/command_submission.c:3598" "a signal came" => Signal;
    "HL_WAIT_CS_FLAGS_INTERRUPT" ENOMEM "common/command_submission.c:3525" "no memory for the waiter" => KernelMemory;
    "HL_WAIT_CS_FLAGS_INTERRUPT_KERNEL_CQ" EINVAL "common/command_submission.c:3402" "no such buffer" => ["wait.counter.no-such-counter", "wait.counter.of-a-destroyed-buffer"];
    "HL_WAIT_CS_FLAGS_INTERRUPT_KERNEL_CQ" EINVAL "common/command_submission.c:3409" "an index behind the buffer's end" => ["wait.counter.no-such-counter"];
    "HL_WAIT_CS_FLAGS_INTERRUPT_KERNEL_CQ" ENOMEM "common/command_submission.c:3415" "no memory for the waiter" => KernelMemory;
    "HL_WAIT_CS_FLAGS_INTERRUPT_KERNEL_CQ" EIO "common/command_submission.c:3457" "a reset aborted the wait" => ["wait.counter.aborted-by-reset"];
    "HL_WAIT_CS_FLAGS_INTERRUPT_KERNEL_CQ" EINTR "common/command_submission.c:3467" "a signal came" => Signal;
    "HL_WAIT_CS_FLAGS_REGISTER_INTERRUPT" EBUSY "common/command_submission.c:3732" "the device is not operational" => ["reset.refuses-everything"];
    "HL_WAIT_CS_FLAGS_REGISTER_INTERRUPT" EINVAL "common/command_submission.c:3667" "no such interrupt" => ["timestamp.no-such-interrupt"];
    "HL_WAIT_CS_FLAGS_REGISTER_INTERRUPT" EINVAL "common/command_submission.c:3329" "no such buffer of counters" => ["timestamp.no-such-counter"];
    "HL_WAIT_CS_FLAGS_REGISTER_INTERRUPT" EINVAL "common/command_submission.c:3336" "an index behind its end" => ["timestamp.no-such-counter"];
    "HL_WAIT_CS_FLAGS_REGISTER_INTERRUPT" EINVAL "common/command_submission.c:3342" "no such buffer of timestamps" => ["timestamp.no-such-buffer"];
    "HL_WAIT_CS_FLAGS_REGISTER_INTERRUPT" EINVAL "common/command_submission.c:3237" "an index behind its end" => ["timestamp.no-such-element"];

    "HL_MEM_OP_ALLOC" EBUSY "common/memory.c:2209" "the device is not operational" => ["reset.refuses-everything"];
    "HL_MEM_OP_ALLOC" EINVAL "common/memory.c:2217" "no bytes" => ["memory.alloc.zero-bytes"];
    "HL_MEM_OP_ALLOC" EINVAL "common/memory.c:43" "a page size that is no power of two" => Chip;
    "HL_MEM_OP_ALLOC" EINVAL "common/memory.c:109" "the size wraps round when it is rounded up" => ["memory.alloc.size-wraps"];
    "HL_MEM_OP_ALLOC" ENOMEM "common/memory.c:124" "no run of pages is long enough" => ["memory.alloc.contiguous.no-run-left"];
    "HL_MEM_OP_ALLOC" ENOMEM "common/memory.c:165" "too few pages are free" => ["memory.alloc.more-than-there-is"];
    "HL_MEM_OP_ALLOC" ENOMEM "common/memory.c:130" "no memory for the list of pages" => KernelMemory;
    "HL_MEM_OP_ALLOC" EFAULT "common/memory.c:180" "no handle is free" => KernelMemory;
    "HL_MEM_OP_FREE" EBUSY "common/memory.c:2209" "the device is not operational" => ["reset.refuses-everything"];
    "HL_MEM_OP_FREE" EINVAL "common/memory.c:365" "no such handle" => ["memory.free.unknown-handle", "memory.free.twice"];
    "HL_MEM_OP_FREE" EINVAL "common/memory.c:371" "it is still mapped" => ["memory.free.while-mapped", "export.free-while-exported"];
    "HL_MEM_OP_MAP" EBUSY "common/memory.c:2209" "the device is not operational" => ["reset.refuses-everything"];
    "HL_MEM_OP_MAP" EINVAL "common/memory.c:1124" "no such handle" => ["memory.map.unknown-handle"];
    "HL_MEM_OP_MAP" EPERM "common/memory.c:1151" "another context's memory that is not SHARED" => OneProcess;
    "HL_MEM_OP_MAP" ENOMEM "common/memory.c:1157" "no memory for the mapping's record" => KernelMemory;
    "HL_MEM_OP_MAP" EINVAL "common/memory.c:1167" "FORCE_HINT for memory that is not aligned" => ["memory.map-host.hint.forced.unaligned-memory"];
    "HL_MEM_OP_MAP" ENOMEM "common/memory.c:1181" "the hint is taken, or no address is left"
        => ["memory.hint.forced.taken", "memory.hint.forced.misaligned", "memory.hint.forced.no-address"];
    "HL_MEM_USERPTR" EINVAL "common/memory.c:2382" "no bytes" => ["memory.map-host.zero-bytes"];
    "HL_MEM_USERPTR" EINVAL "common/memory.c:2394" "the range wraps round" => ["memory.map-host.size-wraps"];
    "HL_MEM_USERPTR" EFAULT "common/memory.c:2323" "an address of the kernel's" => ["memory.map-host.of-the-kernel"];
    "HL_MEM_USERPTR" EFAULT "common/memory.c:2337" "pages that are not there, or may not be written"
        => ["memory.map-host.not-mapped", "memory.map-host.read-only"];
    "HL_MEM_USERPTR" ENOMEM "common/memory.c:2340" "only some of the pages are there" => ["memory.map-host.half-mapped"];
    "HL_MEM_USERPTR" ENOMEM "common/memory.c:2328" "no memory for the list of pages" => KernelMemory;
    "HL_MEM_OP_UNMAP" EBUSY "common/memory.c:2209" "the device is not operational" => ["reset.refuses-everything"];
    "HL_MEM_OP_UNMAP" EINVAL "common/memory.c:1294" "nothing is mapped there"
        => ["memory.unmap.unknown-address", "memory.unmap.interior-address", "memory.unmap.twice"];
    "HL_MEM_OP_UNMAP" EINVAL "common/memory.c:1300" "it is exported" => ["export.unmap-while-exported"];
    "HL_MEM_OP_UNMAP" EFAULT "common/memory.c:1334" "what is mapped is neither host nor device memory" => Never;
    "HL_MEM_OP_UNMAP" EINVAL "common/memory.c:1340" "what is known as mapped is not" => Never;
    "HL_MEM_OP_MAP_BLOCK" EBUSY "common/memory.c:2209" "the device is not operational" => ["reset.refuses-everything"];
    "HL_MEM_OP_MAP_BLOCK" EINVAL "gaudi2/gaudi2.c:11602" "no block for users begins there" => ["block.no-such-address"];
    "HL_MEM_OP_EXPORT_DMABUF_FD" EBUSY "common/memory.c:2209" "the device is not operational" => ["reset.refuses-everything"];
    "HL_MEM_OP_EXPORT_DMABUF_FD" EINVAL "common/memory.c:1904" "an address that is not a page's" => ["export.unaligned-address"];
    "HL_MEM_OP_EXPORT_DMABUF_FD" EINVAL "common/memory.c:1911" "a size of 0 or no multiple of a page" => ["export.size-zero", "export.unaligned-size"];
    "HL_MEM_OP_EXPORT_DMABUF_FD" EINVAL "common/memory.c:1918" "an offset that is no multiple of a page" => ["export.unaligned-offset"];
    "HL_MEM_OP_EXPORT_DMABUF_FD" EINVAL "common/memory.c:1800" "nothing is mapped there" => ["export.unknown-address", "export.interior-address"];
    "HL_MEM_OP_EXPORT_DMABUF_FD" EINVAL "common/memory.c:1807" "host memory" => ["export.host-memory"];
    "HL_MEM_OP_EXPORT_DMABUF_FD" EINVAL "common/memory.c:1970" "past the mapping's end" => ["export.past-the-end"];
    "HL_MEM_OP_EXPORT_DMABUF_FD" EINVAL "common/memory.c:1983" "a page that the memory BAR does not show" => Chip;
    "HL_MEM_OP_EXPORT_DMABUF_FD" EINVAL "common/memory.c:2046" "an offset, where device memory has no virtual addresses" => Chip;
    "HL_MEM_OP_EXPORT_DMABUF_FD" ENOMEM "common/memory.c:2051" "no memory for the export's record" => KernelMemory;
    "HL_MEM_OP_EXPORT_DMABUF_FD" EMFILE "common/memory.c:1866" "the process has no descriptor left" => ["export.no-descriptor-left"];
    "HL_MEM_OP_TS_ALLOC" EBUSY "common/memory.c:2209" "the device is not operational" => ["reset.refuses-everything"];
    "HL_MEM_OP_TS_ALLOC" EINVAL "common/memory.c:2182" "more than 1048576 timestamps" => ["memory.timestamps-buffer"];
    "HL_MEM_OP_TS_ALLOC" ENOMEM "common/memory.c:2187" "none at all" => ["memory.timestamps-buffer.of-nothing"];
    "HL_MEM_OP_ALLOC" EINVAL "common/memory.c:2307" "no such operation" => Typed;
    "HL_MEM_OP_REG_DMABUF_FD" EOPNOTSUPP "common/memory.c:2307" "an operation of the Gaudi3 header: a backend refuses it before mainline would (`EINVAL`)" => ["export.not-mapped-back"];

    "HL_IOCTL_DEBUG" EBUSY "common/habanalabs_ioctl.c:1194" "the device is not operational" => ["reset.refuses-everything"];
    "HL_IOCTL_DEBUG" EFAULT "common/habanalabs_ioctl.c:1208" "the device is not in debug mode" => ["debug.outside-mode"];
    "HL_IOCTL_DEBUG" EINVAL "common/habanalabs_ioctl.c:1220" "no such operation" => ["debug.unknown-operation"];
    "HL_IOCTL_DEBUG" ENOMEM "common/habanalabs_ioctl.c:232" "an answer of more than the kernel allocates at once" => ["debug.answer-too-large"];
    "HL_IOCTL_DEBUG" EFAULT "common/habanalabs_ioctl.c:221" "the input cannot be read" => Typed;
    "HL_IOCTL_DEBUG" EFAULT "common/habanalabs_ioctl.c:250" "the output cannot be written" => Typed;
    "HL_DEBUG_OP_SET_MODE" EFAULT "common/device.c:1227" "off when it is off" => ["debug.mode.off-when-off"];
    "HL_DEBUG_OP_SET_MODE" EFAULT "common/device.c:1242" "on when it is on" => ["debug.mode.twice"];
    "HL_DEBUG_OP_STM" EINVAL "gaudi2/gaudi2_coresight.c:1982" "no such component" => ["debug.no-such-component"];
    "HL_DEBUG_OP_STM" EINVAL "gaudi2/gaudi2_coresight.c:2009" "no parameters" => ["debug.without-parameters"];
    "HL_DEBUG_OP_ETF" EINVAL "gaudi2/gaudi2_coresight.c:2069" "no such component" => ["debug.no-such-component"];
    "HL_DEBUG_OP_ETF" EINVAL "gaudi2/gaudi2_coresight.c:2126" "no parameters" => ["debug.without-parameters"];
    "HL_DEBUG_OP_ETR" EINVAL "gaudi2/gaudi2_coresight.c:2235" "no parameters" => ["debug.without-parameters"];
    "HL_DEBUG_OP_ETR" EINVAL "gaudi2/gaudi2_coresight.c:2239" "a buffer of no bytes" => ["debug.trace-buffer"];
    "HL_DEBUG_OP_ETR" EINVAL "gaudi2/gaudi2_coresight.c:2244" "a buffer where no memory of the user can be" => ["debug.trace-buffer"];
    "HL_DEBUG_OP_FUNNEL" EINVAL "gaudi2/gaudi2_coresight.c:2309" "no such component" => ["debug.no-such-component"];
    "HL_DEBUG_OP_BMON" EINVAL "gaudi2/gaudi2_coresight.c:2347" "no such component" => ["debug.no-such-component"];
    "HL_DEBUG_OP_BMON" EINVAL "gaudi2/gaudi2_coresight.c:2382" "no parameters" => ["debug.without-parameters"];
    "HL_DEBUG_OP_SPMU" EINVAL "gaudi2/gaudi2_coresight.c:2450" "no such component" => ["debug.no-such-component"];
    "HL_DEBUG_OP_SPMU" EINVAL "gaudi2/gaudi2_coresight.c:2475" "no parameters" => ["debug.without-parameters"];
    "HL_DEBUG_OP_SPMU" EINVAL "gaudi2/gaudi2_coresight.c:2479" "more than six events" => ["debug.too-many-events"];
    "HL_DEBUG_OP_SPMU" EINVAL "gaudi2/gaudi2_coresight.c:2520" "more than six counts" => ["debug.too-many-events"];
    "HL_DEBUG_OP_STM" EIO "gaudi2/gaudi2_coresight.c:2003" "a component stays locked (of every kind)" => Card;

    "mmap" EOVERFLOW "common/habanalabs_drv.c:86" "behind the last offset (mm/mmap.c `file_mmap_ok`)" => ["buffer.mmap.past-the-last-offset"];
    "mmap" ENODEV "common/device.c:657" "the device was removed" => Card;
    "mmap" EINVAL "common/device.c:671" "an offset of no kind" => ["buffer.mmap.without-type-bits"];
    "mmap" EINVAL "common/memory_mgr.c:249" "no such buffer" => ["buffer.mmap.after-destroy", "buffer.handle.unknown"];
    "mmap" EINVAL "common/memory_mgr.c:258" "another length than the buffer's" => ["buffer.mmap.wrong-length", "memory.timestamps-buffer.mapped"];
    "mmap" EINVAL "common/memory_mgr.c:275" "it is mapped already" => ["buffer.mmap.twice", "memory.timestamps-buffer.mapped"];
    "mmap" EINVAL "common/memory.c:1482" "an address of the kernel's" => Never;
    "mmap" ENOMEM "common/memory.c:1487" "no memory for the mapping's record" => KernelMemory;
    "mmap" EINVAL "gaudi2/gaudi2.c:11615" "no such block" => ["block.mmap.no-such-number"];
    "mmap" EINVAL "gaudi2/gaudi2.c:11621" "another length than the block's" => ["block.mmap.wrong-length"];
    "attach" EPERM "common/memory.c:1739" "the importer cannot reach the card by PCI peer-to-peer" => Importer;
    "attach" EINVAL "common/memory.c:1553" "the importer's segments are smaller than a page" => Importer;
}
