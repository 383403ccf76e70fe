//! Attestation of a secured device.

use crate::limits::{
    SEC_CERTIFICATE_BUF_SZ, SEC_DEV_INFO_BUF_SZ, SEC_PCR_DATA_BUF_SZ, SEC_PCR_QUOTE_BUF_SZ,
    SEC_PUB_DATA_BUF_SZ, SEC_SIGNATURE_BUF_SZ,
};

c_structs! {
    /// Lengths come from the firmware: check them before use.
    pub struct HlInfoSecAttest = "struct hl_info_sec_attest" {
        /// The caller's random number.
        pub nonce: u32,
        /// Bytes of the quote.
        pub pcr_quote_len: u16,
        /// Bytes of the public data.
        pub pub_data_len: u16,
        /// Bytes of the certificate.
        pub certificate_len: u16,
        /// Registers in `pcr_data`.
        pub pcr_num_reg: u8,
        /// Bytes of a register.
        pub pcr_reg_len: u8,
        /// Bytes of the signature.
        pub quote_sig_len: u8,
        /// The registers.
        pub pcr_data: [u8; SEC_PCR_DATA_BUF_SZ],
        /// The quote.
        pub pcr_quote: [u8; SEC_PCR_QUOTE_BUF_SZ],
        /// The quote's signature.
        pub quote_sig: [u8; SEC_SIGNATURE_BUF_SZ],
        /// The public key.
        pub public_data: [u8; SEC_PUB_DATA_BUF_SZ],
        /// The signing key's certificate.
        pub certificate: [u8; SEC_CERTIFICATE_BUF_SZ],
        /// Zero.
        pub pad0: [u8; 2],
    }

    /// Lengths come from the firmware: check them before use.
    pub struct HlInfoSigned = "struct hl_info_signed", V7 {
        /// The caller's random number.
        pub nonce: u32,
        /// Bytes of the public data.
        pub pub_data_len: u16,
        /// Bytes of the certificate.
        pub certificate_len: u16,
        /// Bytes of the signature.
        pub info_sig_len: u8,
        /// The public key.
        pub public_data: [u8; SEC_PUB_DATA_BUF_SZ],
        /// The signing key's certificate.
        pub certificate: [u8; SEC_CERTIFICATE_BUF_SZ],
        /// The signature.
        pub info_sig: [u8; SEC_SIGNATURE_BUF_SZ],
        /// Bytes of the device information.
        pub dev_info_len: u16,
        /// The device information.
        pub dev_info: [u8; SEC_DEV_INFO_BUF_SZ],
        /// Zero.
        pub pad: [u8; 2],
    }
}
