//! Unsigned numbers in the text of command lines, sysfs and `/proc`.

/// Parses decimal digits. `None` for an empty text, a sign, a blank or a number above `u64::MAX`.
pub fn decimal(text: &str) -> Option<u64> {
    // `u64::from_str` accepts a leading '+'.
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_digits)
}

/// Parses hexadecimal digits without a prefix. `None` as for [`decimal`].
pub fn hexadecimal(digits: &str) -> Option<u64> {
    // `from_str_radix` accepts a leading '+'.
    let is_digits = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u64::from_str_radix(digits, 16).ok().filter(|_| is_digits)
}

/// Parses a decimal number, or a hexadecimal one that begins with `0x`.
pub fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => hexadecimal(digits),
        None => decimal(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_digits_alone() {
        assert_eq!(number("0"), Some(0));
        assert_eq!(number("007"), Some(7));
        assert_eq!(number("18446744073709551615"), Some(u64::MAX));
        assert_eq!(number("0xfFffffffffffffff"), Some(u64::MAX));
        for wrong in [
            "",
            "+1",
            "-1",
            " 1",
            "1 ",
            "ff",
            "0x",
            "0x+1",
            "0X1",
            "18446744073709551616",
        ] {
            assert_eq!(number(wrong), None, "{wrong:?}");
        }
    }
}
