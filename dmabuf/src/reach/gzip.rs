//! Decompression of a gzip file (RFC 1951, RFC 1952): `/proc/config.gz` is the only one, and smaller than `flate2` with what it brings.
//!
//! Any bytes are input: nothing panics, and the output has a bound. The checksum is not verified.

/// The most bytes that a file may decompress to: a kernel's configuration has about 300 000.
const LARGEST: usize = 8 << 20;
/// The longest code (RFC 1951, 3.2.7).
const LONGEST_CODE: usize = 15;
/// The order in which lengths of the code-length code are stored (RFC 1951, 3.2.7).
const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/// The decompressed bytes; `None` where the file is not a whole gzip member, or too large.
pub(super) fn decompress(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut bits = Bits::new(body(bytes)?);
    let mut out = Vec::new();
    loop {
        let last = bits.take(1)? == 1;
        match bits.take(2)? {
            0 => stored(&mut bits, &mut out)?,
            1 => {
                let lengths: Vec<u8> = (0..288)
                    .map(|symbol| match symbol {
                        0..144 => 8,
                        144..256 => 9,
                        256..280 => 7,
                        _ => 8,
                    })
                    .collect();
                block(&mut bits, &mut out, &Code::new(&lengths), &Code::new(&[5; 30]))?;
            }
            2 => {
                let (literals, distances) = codes(&mut bits)?;
                block(&mut bits, &mut out, &literals, &distances)?;
            }
            _ => return None,
        }
        if last {
            return Some(out);
        }
    }
}

/// What follows the header of a gzip member (RFC 1952, 2.3).
fn body(bytes: &[u8]) -> Option<&[u8]> {
    let (header, mut rest) = bytes.split_at_checked(10)?;
    let flags = header[3];
    if header[..3] != [0x1f, 0x8b, 8] || flags & 0xe0 != 0 {
        return None;
    }
    if flags & 4 != 0 {
        let (len, behind) = rest.split_at_checked(2)?;
        rest = behind.get(usize::from(u16::from_le_bytes([len[0], len[1]]))..)?;
    }
    // The file's name, and a comment.
    for flag in [8, 16] {
        if flags & flag != 0 {
            let end = rest.iter().position(|&byte| byte == 0)?;
            rest = rest.get(end + 1..)?;
        }
    }
    rest.get(if flags & 2 != 0 { 2 } else { 0 }..)
}

/// Bits of a stream, the lowest of each byte first.
struct Bits<'a> {
    bytes: std::slice::Iter<'a, u8>,
    held: u32,
    count: u32,
}

impl<'a> Bits<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes: bytes.iter(),
            held: 0,
            count: 0,
        }
    }

    /// The next `count` bits, 16 at most.
    fn take(&mut self, count: u32) -> Option<u32> {
        while self.count < count {
            self.held |= u32::from(*self.bytes.next()?) << self.count;
            self.count += 8;
        }
        let value = self.held & ((1 << count) - 1);
        self.held >>= count;
        self.count -= count;
        Some(value)
    }
}

/// A Huffman code: how many codes have each length, and their symbols in order.
struct Code {
    counts: [u16; LONGEST_CODE + 1],
    symbols: Vec<u16>,
}

impl Code {
    fn new(lengths: &[u8]) -> Self {
        let mut counts = [0; LONGEST_CODE + 1];
        let mut symbols = Vec::new();
        for (wanted, count) in counts.iter_mut().enumerate().skip(1) {
            let of_length = (0..)
                .zip(lengths)
                .filter(|(_, length)| usize::from(**length) == wanted);
            let before = symbols.len();
            symbols.extend(of_length.map(|(symbol, _)| symbol));
            *count = (symbols.len() - before) as u16;
        }
        Self { counts, symbols }
    }

    /// The next symbol. Codes of one length are consecutive, so a length's first code and its count tell whether the bits are one.
    fn next(&self, bits: &mut Bits<'_>) -> Option<u16> {
        let (mut code, mut first, mut index) = (0_u32, 0_u32, 0_u32);
        for &count in &self.counts[1..] {
            let count = u32::from(count);
            code |= bits.take(1)?;
            if let Some(offset) = code.checked_sub(first).filter(|offset| *offset < count) {
                return self.symbols.get((index + offset) as usize).copied();
            }
            index += count;
            first = (first + count) << 1;
            code <<= 1;
        }
        None
    }
}

/// A block without compression (RFC 1951, 3.2.4).
fn stored(bits: &mut Bits<'_>, out: &mut Vec<u8>) -> Option<()> {
    bits.take(bits.count % 8)?;
    let (len, complement) = (bits.take(16)?, bits.take(16)?);
    if len != !complement & 0xffff {
        return None;
    }
    for _ in 0..len {
        put(out, bits.take(8)? as u8)?;
    }
    Some(())
}

/// The codes of a block that brings its own (RFC 1951, 3.2.7).
fn codes(bits: &mut Bits<'_>) -> Option<(Code, Code)> {
    let literals = bits.take(5)? as usize + 257;
    let distances = bits.take(5)? as usize + 1;
    let mut of_lengths = [0; 19];
    for &at in &ORDER[..bits.take(4)? as usize + 4] {
        of_lengths[at] = bits.take(3)? as u8;
    }
    let of_lengths = Code::new(&of_lengths);
    let mut lengths = Vec::new();
    while lengths.len() < literals + distances {
        let (length, repeat) = match of_lengths.next(bits)? {
            16 => (*lengths.last()?, bits.take(2)? + 3),
            17 => (0, bits.take(3)? + 3),
            18 => (0, bits.take(7)? + 11),
            length => (length as u8, 1),
        };
        lengths.extend((0..repeat).map(|_| length));
    }
    let (first, second) = lengths.get(..literals + distances)?.split_at_checked(literals)?;
    Some((Code::new(first), Code::new(second)))
}

/// A compressed block's literals and copies (RFC 1951, 3.2.5).
fn block(bits: &mut Bits<'_>, out: &mut Vec<u8>, literals: &Code, distances: &Code) -> Option<()> {
    loop {
        let symbol = match literals.next(bits)? {
            literal @ 0..256 => {
                put(out, literal as u8)?;
                continue;
            }
            256 => return Some(()),
            symbol => u32::from(symbol) - 257,
        };
        // Lengths and distances double every fourth and every second symbol.
        let len = match symbol {
            0..8 => symbol + 3,
            8..28 => {
                let extra = symbol / 4 - 1;
                ((4 + symbol % 4) << extra) + 3 + bits.take(extra)?
            }
            28 => 258,
            _ => return None,
        };
        let symbol = u32::from(distances.next(bits)?);
        let distance = match symbol {
            0..4 => symbol + 1,
            4..30 => {
                let extra = symbol / 2 - 1;
                ((2 + symbol % 2) << extra) + 1 + bits.take(extra)?
            }
            _ => return None,
        };
        for _ in 0..len {
            let from = out.len().checked_sub(distance as usize)?;
            put(out, *out.get(from)?)?;
        }
    }
}

fn put(out: &mut Vec<u8>, byte: u8) -> Option<()> {
    (out.len() < LARGEST).then(|| out.push(byte))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    use proptest::prelude::*;

    use super::*;

    /// `printf 'CONFIG_PCI_P2PDMA=y\n' | gzip -n`: one block of the fixed code.
    const SMALL: [u8; 40] = [
        0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x03, 0x73, 0xf6, 0xf7, 0x73, 0xf3, 0x74, 0x8f,
        0x0f, 0x70, 0xf6, 0x8c, 0x0f, 0x30, 0x0a, 0x70, 0xf1, 0x75, 0xb4, 0xad, 0xe4, 0x02, 0x00, 0x2d, 0xad,
        0x3a, 0x09, 0x14, 0x00, 0x00, 0x00,
    ];

    #[test]
    fn small_file_decompresses() {
        assert_eq!(decompress(&SMALL).unwrap(), b"CONFIG_PCI_P2PDMA=y\n");
    }

    #[test]
    fn large_file_decompresses_as_gzip_does() {
        let text: String = (0..20_000_u64)
            .map(|n| {
                format!(
                    "CONFIG_{:X}={}\n",
                    n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40,
                    n % 7
                )
            })
            .collect();
        for level in ["-1", "-9"] {
            let mut gzip = Command::new("gzip")
                .args(["-n", "-c", level])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("gzip is installed on every distribution");
            let (mut stdin, input) = (gzip.stdin.take().unwrap(), text.clone());
            let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
            let packed = gzip.wait_with_output().unwrap().stdout;
            writer.join().unwrap().unwrap();
            assert_eq!(decompress(&packed).unwrap(), text.as_bytes());
            for end in [0, 9, 10, 11, 100, packed.len() / 2] {
                assert_eq!(
                    decompress(&packed[..end]),
                    None,
                    "{end} bytes of {}",
                    packed.len()
                );
            }
        }
    }

    #[test]
    fn output_is_bounded() {
        // A stored block of one byte, and blocks of the fixed code with copies of 258 bytes for ever: 1 KiB of zeros is 1 bit a byte.
        let mut bytes = SMALL[..10].to_vec();
        bytes.extend([0xec, 0xc1]);
        bytes.extend(vec![0x00; 1 << 20]);
        assert!(decompress(&bytes).is_none_or(|out| out.len() <= LARGEST));
    }

    proptest! {
        #![proptest_config(gaudi_random::config(256))]

        #[test]
        fn no_bytes_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = decompress(&bytes);
            bytes.splice(0..0, SMALL[..10].iter().copied());
            let _ = decompress(&bytes);
        }
    }
}
