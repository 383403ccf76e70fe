//! Plain constants of the headers: sizes and limits.

use crate::{Named, Since};

macro_rules! limits {
    ($($(#[$meta:meta])* $since:ident $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$meta])* pub const $name: $type = $value;)*

        /// Every constant of this module.
        pub const NAMES: &[Named] = &[$(Named {
            c_name: stringify!($name),
            value: $name as u64,
            since: Since::$since,
        }),*];
    };
}

limits! {
    /// The largest command buffer of the kernel, in bytes: 2 MiB less room for two MSG_PROT
    /// packets.
    V6_1 HL_MAX_CB_SIZE: u32 = 0x20_0000 - 32;
    /// The most chunks (jobs) in one submission.
    V6_1 HL_MAX_JOBS_PER_CS: u32 = 512;
    /// The most sequence numbers in one multi-CS wait.
    V6_1 HL_WAIT_MULTI_CS_LIST_MAX_LEN: usize = 32;
    /// The most elements of a timestamp buffer.
    V6_1 TS_MAX_ELEMENTS_NUM: u32 = 1 << 20;
    /// Bytes of a firmware version text, its zeros included.
    V6_1 HL_INFO_VERSION_MAX_LEN: usize = 128;
    /// Bytes of a card name, its zeros included.
    V6_1 HL_INFO_CARD_NAME_MAX_LEN: usize = 16;
    /// The largest engine-status text, in bytes.
    V6_1 HL_ENGINES_DATA_MAX_SIZE: u32 = 1 << 20;
    /// Words of the extended mask of busy engines (2 in Linux 6.1).
    V7 HL_BUSY_ENGINES_MASK_EXT_SIZE: usize = 4;
    /// Outputs of a PLL.
    V6_1 HL_PLL_NUM_OUTPUTS: usize = 4;
    /// Kinds of clock throttling.
    V6_1 HL_CLK_THROTTLE_TYPE_MAX: usize = 2;
    /// The engine id of an initiator that has none.
    V7 HL_RAZWI_NA_ENG_ID: u16 = u16::MAX;
    /// The most engines that a RAZWI record names.
    V7 HL_RAZWI_MAX_NUM_OF_ENGINES_PER_RTR: usize = 128;
    /// Streams of a QMAN in an undefined-opcode record.
    V6_1 MAX_QMAN_STREAMS_INFO: usize = 4;
    /// Command-buffer addresses per stream in an undefined-opcode record.
    V6_1 OPCODE_INFO_MAX_ADDR_SIZE: usize = 8;
    /// Bytes of PCR data in an attestation.
    V6_1 SEC_PCR_DATA_BUF_SZ: usize = 256;
    /// Bytes of a quote in an attestation.
    V6_1 SEC_PCR_QUOTE_BUF_SZ: usize = 510;
    /// Bytes of a signature in an attestation.
    V6_1 SEC_SIGNATURE_BUF_SZ: usize = 255;
    /// Bytes of public data in an attestation.
    V6_1 SEC_PUB_DATA_BUF_SZ: usize = 510;
    /// Bytes of a certificate in an attestation.
    V6_1 SEC_CERTIFICATE_BUF_SZ: usize = 2046;
    /// Bytes of signed device information.
    V7 SEC_DEV_INFO_BUF_SZ: usize = 5120;
    /// The most event types of an SPMU configuration.
    V6_1 HL_DEBUG_MAX_AUX_VALUES: usize = 10;
    /// Bytes at the start of Goya's SRAM that the driver keeps.
    V6_1 GOYA_KMD_SRAM_RESERVED_SIZE_FROM_START: u32 = 0x8000;
    /// Bytes at the start of Gaudi's SRAM that the driver keeps.
    V6_1 GAUDI_DRIVER_SRAM_RESERVED_SIZE_FROM_START: u32 = 0x80;
    /// The first sync object of Gaudi's west-south manager that users may use.
    V6_1 GAUDI_FIRST_AVAILABLE_W_S_SYNC_OBJECT: u32 = 144;
    /// The first monitor of Gaudi's west-south manager that users may use.
    V6_1 GAUDI_FIRST_AVAILABLE_W_S_MONITOR: u32 = 72;
    /// The highest device status.
    V6_1 HL_DEVICE_STATUS_LAST: u32 = 5;
    /// One more than the highest engine command.
    V7 HL_ENGINE_COMMAND_MAX: u32 = 5;
    /// Directions of Goya's DMA.
    V6_1 HL_DMA_ENUM_MAX: u32 = 8;
    /// PLLs of Goya.
    V6_1 HL_GOYA_PLL_MAX: u32 = 7;
    /// PLLs of Gaudi.
    V6_1 HL_GAUDI_PLL_MAX: u32 = 10;
    /// PLLs of Gaudi2.
    V6_1 HL_GAUDI2_PLL_MAX: u32 = 12;
    /// Engines of Goya.
    V6_1 GOYA_ENGINE_ID_SIZE: u32 = 14;
    /// Engines of Gaudi.
    V6_1 GAUDI_ENGINE_ID_SIZE: u32 = 30;
}
