//! Reduces a failing sequence.

/// Returns a small part of `0..len` that still fails, by leaving out ever smaller pieces (delta
/// debugging). Calls `fails` at most `most` times, with the remaining numbers in order. `0..len`
/// itself must fail.
pub fn smallest(len: usize, most: usize, mut fails: impl FnMut(&[usize]) -> bool) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..len).collect();
    let mut asked = 0;
    let mut part = kept.len().div_ceil(2);
    while part > 0 && asked < most {
        let mut at = 0;
        let before = kept.len();
        while at < kept.len() && asked < most {
            let end = (at + part).min(kept.len());
            let mut smaller = kept.clone();
            smaller.drain(at..end);
            asked += 1;
            if fails(&smaller) {
                kept = smaller;
            } else {
                at = end;
            }
        }
        if part == 1 && kept.len() == before {
            break;
        }
        part = if part == 1 { 1 } else { part.div_ceil(2) };
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needed_numbers_remain_in_order() {
        let fails = |kept: &[usize]| [3, 40, 97].iter().all(|needed| kept.contains(needed));
        assert_eq!(smallest(100, 1000, fails), [3, 40, 97]);
    }

    #[test]
    fn calls_to_fails_are_limited() {
        let mut asked = 0;
        let kept = smallest(1000, 7, |_| {
            asked += 1;
            false
        });
        assert_eq!(
            (asked, kept.len()),
            (7, 1000),
            "every call returned false, so all numbers remain"
        );
    }
}
