//! RDMA commands that write(2) passes to `/dev/infiniband/uverbsN`: libraries before rdma-core 33
//! use it.

use crate::decode::DATA_BYTES;
use crate::foreign::{IS_EXTENDED, command, half};
use crate::record::{Memory, Moment};
use crate::value::{Fields, Value};

/// The headers of a command that write(2) passes (`struct ib_uverbs_cmd_hdr`, and for an extended
/// command `struct ib_uverbs_ex_cmd_hdr`, of `rdma/ib_user_verbs.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteCommand {
    /// The number, with the flags.
    pub command: u32,
    /// Length of the command in words: of 4 bytes with the header, or of an extended one, of 8
    /// without it.
    pub in_words: u16,
    /// Length of the response in the same words.
    pub out_words: u16,
    /// Of an extended command: lengths of the driver's parts.
    pub provider_words: Option<(u16, u16)>,
    /// Address of the response; 0 without one.
    pub response: u64,
}

impl WriteCommand {
    /// Bytes of the longest headers with the address of the response.
    pub const HEADERS: usize = 24;

    /// Reads the headers from the first bytes of a command.
    pub fn of(bytes: &[u8]) -> Option<Self> {
        let command = u32::from_le_bytes(*bytes.first_chunk()?);
        let (in_words, out_words) = (half(bytes, 4)?, half(bytes, 6)?);
        let is_extended = u64::from(command) & IS_EXTENDED != 0;
        let provider_words = match is_extended {
            true => Some((half(bytes, 16)?, half(bytes, 18)?)),
            false => None,
        };
        // Both forms have the address next. A command without a response has other data there.
        let provider_out = provider_words.map_or(0, |(_, out)| out);
        let response = match (out_words, provider_out) {
            (0, 0) => 0,
            _ => u64::from_le_bytes(*bytes.get(8..)?.first_chunk()?),
        };
        Some(Self {
            command,
            in_words,
            out_words,
            provider_words,
            response,
        })
    }

    /// Returns the length of the response in bytes.
    pub fn response_bytes(&self) -> u64 {
        match self.provider_words {
            Some((_, out)) => 8 * (u64::from(self.out_words) + u64::from(out)),
            None => 4 * u64::from(self.out_words),
        }
    }

    fn header_bytes(&self) -> usize {
        match self.provider_words {
            Some(_) => Self::HEADERS,
            None => 8,
        }
    }

    fn name(&self) -> String {
        let name = command(self.command.into());
        match name.strip_prefix("EX_") {
            Some(name) => format!("IB_USER_VERBS_EX_CMD_{name}"),
            None => format!("IB_USER_VERBS_CMD_{name}"),
        }
    }
}

/// Decodes a command that write(2) passes: its name, the headers and the start of its data, and the
/// start of the response.
pub(crate) fn write_command(memory: &[Memory]) -> (String, Fields, Fields) {
    let (mut request, mut answer) = (Fields::default(), Fields::default());
    let at = |moment| memory.iter().find(|piece| piece.at == moment);
    let start = |piece: &Memory, from: usize| {
        let bytes = piece.bytes.get(from..).unwrap_or(&[]);
        let shown = bytes.len().min(DATA_BYTES);
        Value::Bytes {
            bytes: bytes[..shown].to_vec(),
            more: piece.whole.saturating_sub((from + shown) as u64),
        }
    };
    let Some((piece, head)) =
        at(Moment::Entry).and_then(|piece| Some((piece, WriteCommand::of(&piece.bytes)?)))
    else {
        request.push("command", Value::Cut);
        return ("write".to_owned(), request, answer);
    };
    request.push("in_words", Value::Unsigned(head.in_words.into()));
    request.push("out_words", Value::Unsigned(head.out_words.into()));
    if let Some((input, output)) = head.provider_words {
        request.push("provider_in_words", Value::Unsigned(input.into()));
        request.push("provider_out_words", Value::Unsigned(output.into()));
    }
    if head.response != 0 {
        request.push("response", Value::Hex(head.response));
    }
    if piece.whole > head.header_bytes() as u64 {
        request.push("data", start(piece, head.header_bytes()));
    }
    if let Some(piece) = at(Moment::Exit) {
        answer.push("response", start(piece, 0));
    }
    (head.name(), request, answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(address: u64, at: Moment, bytes: Vec<u8>) -> Memory {
        Memory {
            address,
            at,
            whole: bytes.len() as u64,
            bytes,
        }
    }

    #[test]
    fn written_commands_have_headers_and_responses() {
        let head = |command: u32, words: [u16; 2], response: u64| {
            let words = words.map(u16::to_le_bytes).concat();
            [&command.to_le_bytes()[..], &words, &response.to_le_bytes()].concat()
        };
        let alloc = head(3, [4, 1], 0x9000);
        let memory = [
            piece(0x1000, Moment::Entry, alloc),
            piece(0x9000, Moment::Exit, vec![7, 0, 0, 0]),
        ];
        let (name, request, answer) = write_command(&memory);
        assert_eq!(name, "IB_USER_VERBS_CMD_ALLOC_PD");
        assert_eq!(
            request.to_string(),
            "in_words=4, out_words=1, response=0x9000, data=<0090000000000000>"
        );
        assert_eq!(answer.to_string(), "response=<07000000>");
        let mut extended = head(IS_EXTENDED as u32 | 50, [2, 1], 0x9000);
        extended.extend([3, 0, 1, 0, 0, 0, 0, 0]);
        let command = WriteCommand::of(&extended).expect("the headers");
        assert_eq!((command.response, command.response_bytes()), (0x9000, 16));
        let (name, request, _) = write_command(&[piece(0, Moment::Entry, extended)]);
        assert_eq!(name, "IB_USER_VERBS_EX_CMD_CREATE_FLOW");
        assert!(request.to_string().contains("provider_out_words=1"), "{request}");
        // Without a response the next bytes are data: those of DEALLOC_PD.
        let dealloc = WriteCommand::of(&head(4, [3, 0], 0x1234)).expect("the headers");
        assert_eq!((dealloc.response, dealloc.response_bytes()), (0, 0));
        for len in 0..WriteCommand::HEADERS {
            let mut bytes = head(IS_EXTENDED as u32 | 50, [2, 1], 0x9000);
            bytes.truncate(len);
            assert_eq!(WriteCommand::of(&bytes), None);
        }
    }
}
