//! The coverage of fault runs as one HTML page: no script, nothing from a network.

use std::fmt::Write as _;

use gaudi::faults::{DeviceState, Pair};

use crate::picture::escaped;

const PAGE: &str = include_str!("faults_page.html");

/// Writes the page. Every pair of `pairs` is a cell: a count, the letters of its reason, or
/// "missing".
pub(crate) fn page(title: &str, summary: &str, pairs: &[Pair]) -> String {
    let mut reasons: Vec<&str> = Vec::new();
    for reason in pairs.iter().filter_map(|pair| pair.never.as_deref()) {
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    // No placeholder is left in a replaced text: `escaped` replaces the sign that begins one.
    PAGE.replace("@TITLE@", &escaped(title))
        .replace("@SUMMARY@", &escaped(summary))
        .replace("@PAIRS@", &cells(pairs, &reasons))
        .replace("@REASONS@", &legend(&reasons))
        .replace("@STATES@", &states(pairs))
}

fn cells(pairs: &[Pair], reasons: &[&str]) -> String {
    let Some(first) = pairs.first() else {
        return String::new();
    };
    let mut text = "<thead><tr><th>verdict</th>".to_owned();
    for pair in pairs.iter().take_while(|pair| pair.verdict == first.verdict) {
        let _ = write!(text, "<th>{}</th>", escaped(pair.operation.name()));
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    for row in pairs.chunk_by(|one, next| one.verdict == next.verdict) {
        let _ = write!(text, "<tr><th>{}</th>", escaped(row[0].verdict));
        for pair in row {
            text.push_str(&cell(pair, reasons));
        }
        text.push_str("</tr>\n");
    }
    text + "</tbody>\n"
}

fn cell(pair: &Pair, reasons: &[&str]) -> String {
    let faults: u64 = pair.faults.iter().sum();
    match &pair.never {
        _ if faults > 0 => format!("<td class=\"met\">{faults}</td>"),
        Some(reason) => {
            let index = reasons.iter().position(|known| known == reason);
            let name = letters(index.unwrap_or_else(|| unreachable!("every reason is listed")));
            let why = escaped(reason);
            format!("<td class=\"never\" title=\"{why}\"><a href=\"#{name}\">{name}</a></td>")
        }
        None => "<td class=\"missing\">missing</td>".to_owned(),
    }
}

/// `a` to `z`, then `aa` and so on.
fn letters(index: usize) -> String {
    let last = char::from(b'a' + (index % 26) as u8);
    match index / 26 {
        0 => last.to_string(),
        rest => letters(rest - 1) + &last.to_string(),
    }
}

fn legend(reasons: &[&str]) -> String {
    let items = reasons.iter().enumerate().map(|(index, reason)| {
        let name = letters(index);
        format!(
            "<li id=\"{name}\"><strong>{name}</strong> {}</li>\n",
            escaped(reason)
        )
    });
    items.collect()
}

fn states(pairs: &[Pair]) -> String {
    let mut text = "<thead><tr><th>verdict</th><th>operation</th>".to_owned();
    for state in DeviceState::ALL {
        let _ = write!(text, "<th>{}</th>", escaped(state.name()));
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    for pair in pairs
        .iter()
        .filter(|pair| pair.faults.iter().any(|&count| count > 0))
    {
        let (verdict, operation) = (escaped(pair.verdict), escaped(pair.operation.name()));
        let _ = write!(text, "<tr><th>{verdict}</th><th>{operation}</th>");
        for count in pair.faults {
            let _ = write!(text, "<td>{count}</td>");
        }
        text.push_str("</tr>\n");
    }
    text + "</tbody>\n"
}

#[cfg(test)]
mod tests {
    use gaudi::faults::Coverage;

    use super::*;

    #[test]
    fn letters_go_on_after_z() {
        assert_eq!([0, 25, 26, 52, 702].map(letters), ["a", "z", "aa", "ba", "aaa"]);
    }

    #[test]
    fn every_pair_is_one_cell() {
        let mut pairs = Coverage::default().pairs();
        let can_meet = pairs.iter().position(|pair| pair.never.is_none());
        pairs[can_meet.expect("a pair that can meet")].faults = [1, 0, 2, 0];
        let page = page("coverage", "of a test", &pairs);
        let count = |what: &str| page.matches(what).count();
        let missing = pairs.iter().filter(|pair| pair.never.is_none()).count() - 1;
        assert_eq!(count("<td class=\"met\">3</td>"), 1);
        assert_eq!(count("<td class=\"missing\">"), missing);
        assert_eq!(count("<td class=\"never\""), pairs.len() - missing - 1);
        assert_eq!(count("<td>1</td><td>0</td><td>2</td><td>0</td>"), 1);
        assert_eq!(count("@"), 1, "no placeholder is left, only @media");
        for part in ["<script", "http:", "https:"] {
            assert_eq!(count(part), 0, "{part}");
        }
    }

    #[test]
    fn text_cannot_become_markup() {
        let mut pairs = Coverage::default().pairs();
        pairs.truncate(1);
        pairs[0].never = Some("<b onclick='x'>\"@STATES@\"".to_owned());
        let page = page("</title><script>", "a & b", &pairs);
        assert!(!page.contains("<script") && !page.contains("<b "), "{page}");
        assert!(
            page.contains("&lt;b onclick=&#39;x&#39;&gt;&quot;&#64;STATES&#64;&quot;"),
            "{page}"
        );
        assert!(page.contains("a &amp; b"), "{page}");
        assert_eq!(
            page.matches("<tbody>").count(),
            2,
            "the placeholder in a reason stays text"
        );
    }

    #[test]
    fn page_is_as_recorded() {
        let mut pairs = Coverage::default().pairs();
        pairs.retain(|pair| ["submit", "wait_cs"].contains(&pair.operation.name()));
        pairs.truncate(8);
        pairs[0].faults = [4, 3, 2, 1];
        snapbox::Assert::new()
            .action_env(snapbox::assert::DEFAULT_ACTION_ENV)
            .eq(
                page("coverage of a test", "7 cases", &pairs),
                snapbox::file!["../tests/golden/faults-page.html"],
            );
    }
}
